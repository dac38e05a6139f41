"""The commands by which people speak with a coordinator of jobs: submit, list, status, cancel."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.cli.options import (
    JobArgument,
    JoinOption,
    JsonOption,
    PriorityOption,
    SetOption,
    WaitOption,
    WatchOption,
    WeightOption,
)
from spotlight.cli.reaching import asking
from spotlight.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spotlight.actors.protocol.users import JobAccepted, JobEntry, JobStatus


def submit(
    job: Annotated[Path, typer.Argument(help="Job file (YAML).")],
    run_folder: Annotated[
        Path | None, typer.Option("--run-folder", help="Run folder on the coordinator's machine.")
    ] = None,
    changes: SetOption = None,
    name: Annotated[
        str, typer.Option("--name", help="Name of the job, instead of the job file's.")
    ] = "",
    weight: WeightOption = 1.0,
    priority: PriorityOption = 0,
    wait: WaitOption = False,
    watch: WatchOption = False,
    join: JoinOption = "",
    as_json: JsonOption = False,
) -> None:
    """Put a job into a coordinator's queue."""
    from spotlight.cli.job_files import check_folder, read_job

    check_folder("--run-folder", run_folder)
    named = [f"name={json.dumps(name)}"] if name else []
    spec = read_job(job, [*(changes or ()), *named])
    place = str(run_folder.resolve()) if run_folder else ""
    accepted = asking(
        join,
        lambda client: client.submit(spec, place, resume=False, weight=weight, priority=priority),
    )
    go_on_with(accepted, join, wait=wait, watch=watch, as_json=as_json)


def go_on_with(accepted: JobAccepted, join: str, *, wait: bool, watch: bool, as_json: bool) -> None:
    """Say that a job is in the queue, and look on at it if that is wanted; raises `typer.Exit` with
    how it has ended then."""
    import msgspec

    from spotlight.cli.watching import look_on

    if as_json:
        typer.echo(msgspec.json.encode(accepted).decode())
    else:
        typer.echo(f"submitted as {accepted.job_id}; its files are in {accepted.run_folder}")
    if wait or watch:
        raise typer.Exit(look_on(join, accepted.job_id, shown=watch, as_json=as_json))


def list_jobs(
    ended: Annotated[
        bool, typer.Option("--all", help="List the latest that have ended as well.")
    ] = False,
    join: JoinOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the jobs and sessions that run or wait, in the order in which they are to begin."""
    import msgspec
    from rich.console import Console

    answer = asking(join, lambda client: client.jobs())
    jobs = [job for job in answer.jobs if ended or job.ended_at is None]
    if as_json:
        typer.echo(msgspec.json.encode(jobs).decode())
    elif jobs:
        Console().print(job_table(jobs, time.time()))
    else:
        rest = "" if ended or not answer.jobs else "; `spotlight list --all` has those that ended"
        typer.echo(f"no job runs or waits{rest}")


def status(job: JobArgument = "", join: JoinOption = "", as_json: JsonOption = False) -> None:
    """Show how a job is now."""
    import msgspec
    from rich.console import Console

    from spotlight.cli.live import render
    from spotlight.cli.time_left import TimeLeft

    answer = asking(join, lambda client: client.status(job))
    if as_json:
        typer.echo(msgspec.json.encode(answer).decode())
    else:
        Console().print(render(answer, TimeLeft().seen(answer)))


def cancel(
    job: JobArgument = "",
    join: JoinOption = "",
) -> None:
    """End a job, or take it out of the queue; it can be resumed from its run folder."""
    before = asking(join, lambda client: client.cancel(job))
    if not before.job or before.outcome:
        raise UserError(_nothing_to_cancel(before))
    typer.echo(f"cancelled `{before.job}`; go on with it: spotlight resume {before.run_folder}")


def _nothing_to_cancel(last: JobStatus) -> str:
    return f"`{last.job}` has ended already: {last.outcome}" if last.job else "no job is running"


def job_table(jobs: list[JobEntry], now: float) -> RenderableType:
    """Jobs as people see them, and below what is to be said of some. Each has its name, or if that
    is not its alone its id. Owners, weights and priorities are shown where they differ.

    Args:
        now: seconds since 1970.
    """
    from rich.console import Group
    from rich.text import Text

    from spotlight.cli.tables import plain_table

    several = len({job.owner for job in jobs}) > 1
    weighted = any(job.weight != 1 for job in jobs)
    ranked = any(job.priority for job in jobs)
    names = Counter(job.name for job in jobs)
    called = [job.name if names[job.name] == 1 else job.id for job in jobs]
    columns = ["job", "state", "done", "nodes"]
    columns += ["owner"] * several + ["weight"] * weighted + ["priority"] * ranked + ["since"]
    rows = [
        [
            call,
            job.state,
            f"{job.iteration}/{job.iterations}" if job.iterations else "",
            str(job.nodes),
            *[job.owner] * several,
            *[f"{job.weight:g}"] * weighted,
            *[str(job.priority)] * ranked,
            _since(job, now),
        ]
        for call, job in zip(called, jobs, strict=True)
    ]
    notes = [
        Text(f"{call}: {job.note}", style="dim")
        for call, job in zip(called, jobs, strict=True)
        if job.note
    ]
    space = [Text()] if notes else []
    return Group(plain_table(columns, rows, folded=("job",)), *space, *notes)


def _since(job: JobEntry, now: float) -> str:
    """How long a job waits, runs, or has ended."""
    from spotlight.cli.tables import coarse

    return coarse(max(0.0, now - (job.ended_at or job.began_at or job.submitted_at)))
