"""`spotlight run`: a job on this machine, with a view of it until it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from spotlight.actors.protocol.users import JobStatus
from spotlight.actors.runtime.loop import ending_signals, run
from spotlight.cli.job_files import operator_prices, read_job
from spotlight.cli.live import mirror_trouble, summary_table
from spotlight.cli.live_page import page_of_run
from spotlight.cli.money_rows import money_rows
from spotlight.cli.plan import plan_lines
from spotlight.cli.terminal_view import TerminalView
from spotlight.errors import RunFolderError, UserError
from spotlight.files import path_problem
from spotlight.jobs import JobSpec
from spotlight.permissions import Permissions
from spotlight.preflight.budget_checks import check_budget_left, check_money
from spotlight.preflight.checks import check, check_store
from spotlight.preflight.starts import find_start
from spotlight.process_start import NOTICE_SIGNALS
from spotlight.report.metrics import read_run, summarise
from spotlight.report.rendering import write_report
from spotlight.report.view_building import built_from
from spotlight.running.local_cluster import LocalPlaces
from spotlight.running.local_run import (
    StopWish,
    check_new_folder,
    make_log_folder,
    run_local_job,
)
from spotlight.store.memory_folder import usable_base
from spotlight.store.object_store import open_store
from spotlight.store.run_folder import next_run_folder, read_continued

if TYPE_CHECKING:
    from spotlight.web.opening import PagePlace

_EXIT_CODES = {"finished": 0, "cancelled": 130, "failed": 1}


def run_locally(
    job_path: Path | None,
    resume: Path | None,
    run_folder: Path | None,
    changes: Sequence[str],
    places: LocalPlaces,
    page: PagePlace | None = None,
) -> int:
    """Run or resume a job here, with its live page if that is to be somewhere; returns the exit
    code."""
    console = Console()
    if resume is not None:
        folder = resume.resolve()
        job = read_continued(folder, changes)
    else:
        assert job_path is not None
        job = read_job(job_path, changes)
        folder = new_run_folder(job, run_folder)
        check_new_folder(folder)
        if job.model.start:
            find_start(job.model)
    files = check(job, run_folder=folder, permissions=places.permissions)
    check_store(job, files, places.store)
    prices = check_money(job, operator_prices(places.prices))
    if resume is not None:
        check_budget_left(job, folder)
    plan = plan_lines(job, files, folder, prices)
    make_log_folder(folder / "logs")
    console.print(plan)
    alone = run_folder is not None  # what lies beside it is nobody's business
    with page_of_run(page, folder, alone=alone, say=console.print):
        return run(_run(job, folder, places, None if resume is None else changes, console))


def local_places(
    store: Path | None,
    mirror: str,
    secrets: Sequence[str],
    operator_token: Path | None = None,
    prices: Path | None = None,
) -> LocalPlaces:
    """What `--store`, `--mirror`, `--reward-secret`, `--operator-token` and `--prices` say; raises
    `UserError` that names the option."""
    if mirror:
        open_store("--mirror", mirror)
    permissions = Permissions.parse((), secrets)
    base = usable_base("--store", store)
    prices = None if prices is None else prices.absolute()
    return LocalPlaces(
        base, mirror, permissions=permissions, operator_token=operator_token, prices=prices
    )


def new_run_folder(job: JobSpec, wanted: Path | None) -> Path:
    """Where a new run goes; raises `RunFolderError` if that is no path."""
    folder = (wanted or next_run_folder(Path("runs"), job.name)).resolve()
    problem = path_problem(str(folder))
    if problem is not None:
        raise RunFolderError(f"{folder} {problem}; give another --run-folder")
    return folder


async def _run(
    job: JobSpec,
    folder: Path,
    places: LocalPlaces,
    changes: Sequence[str] | None,
    console: Console,
) -> int:
    """`changes` are those of a run that goes on; None: it is a new one."""
    stop = StopWish()
    loop = asyncio.get_running_loop()
    for number in {signal.SIGINT, *ending_signals()}:  # shells let background commands ignore it
        loop.add_signal_handler(number, stop.wish)
    for number in NOTICE_SIGNALS:
        loop.add_signal_handler(number, stop.wish, f"{number.name}: this machine will be taken")
    with Live(console=console, auto_refresh=False, transient=True) as live:
        view = TerminalView(console, live)
        last = await run_local_job(
            job,
            folder,
            view,
            stop,
            places=places,
            resume=changes is not None,
            changes=changes or (),
        )
    if last is None:
        last = _broken_off(folder, console)
    _say_how_it_ended(last, folder, console)
    return _EXIT_CODES[last.outcome or "failed"]


def _broken_off(folder: Path, console: Console) -> JobStatus:
    """A run that was ended without its coordinator has a report, too."""
    try:
        console.print(f"report: {write_report(folder)}", soft_wrap=True)
    except UserError as error:
        console.print(f"no report: {error}", soft_wrap=True, markup=False)
    reason = "interrupted; the coordinator did not answer, and was ended with the run"
    return JobStatus(outcome="cancelled", reason=reason)


def _say_how_it_ended(status: JobStatus, folder: Path, console: Console) -> None:
    if trouble := mirror_trouble(status):
        console.print(trouble, soft_wrap=True, markup=False)
    if status.outcome == "finished":
        run = read_run(folder)
        spent = money_rows(built_from(run).view().money)
        console.print(summary_table(summarise(run), spent))
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    else:
        console.print(f"{status.outcome}: {status.reason}", soft_wrap=True, markup=False)
        console.print(f"continue with: spotlight run --resume {folder}", soft_wrap=True)
