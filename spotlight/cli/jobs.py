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
    ResumeOption,
    SetOption,
    WeightOption,
)
from spotlight.cli.reaching import asking
from spotlight.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spotlight.actors.protocol import JobStatus
    from spotlight.actors.protocol.users import JobEntry


def submit(
    job: Annotated[Path | None, typer.Argument(help="Job file (YAML).")] = None,
    resume: ResumeOption = None,
    run_folder: Annotated[
        Path | None, typer.Option("--run-folder", help="Run folder on the coordinator's machine.")
    ] = None,
    changes: SetOption = None,
    name: Annotated[
        str, typer.Option("--name", help="Name of the job, instead of the job file's.")
    ] = "",
    weight: WeightOption = 1.0,
    priority: PriorityOption = 0,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until the job has ended; the exit code says how."),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the job until it has ended, as `watch` does.")
    ] = False,
    join: JoinOption = "",
    as_json: JsonOption = False,
) -> None:
    """Put a job into a coordinator's queue, or have it go on with an interrupted one."""
    import msgspec

    from spotlight.cli.job_files import check_choice, read_job
    from spotlight.cli.watching import look_on
    from spotlight.store.run_folder import read_continued

    if wait and watch:
        raise UserError("--watch: waits as well; leave --wait out")
    if name and resume is not None:
        raise UserError("--name: a run that is resumed keeps its name; leave it out")
    check_choice(job, resume, run_folder)
    named = [f"name={json.dumps(name)}"] if name else []
    if job is not None:
        spec = read_job(job, [*(changes or ()), *named])
    else:
        spec = read_continued((resume or Path()).resolve(), changes or ())
    folder = resume or run_folder
    place = str(folder.resolve()) if folder else ""
    accepted = asking(
        join,
        lambda client: client.submit(
            spec,
            place,
            resume=resume is not None,
            changes=() if resume is None else changes or (),
            weight=weight,
            priority=priority,
        ),
    )
    if as_json:
        typer.echo(msgspec.json.encode(accepted).decode())
    else:
        said = f"submitted `{spec.name}`, id {accepted.job_id}"
        typer.echo(f"{said}; its files are in {accepted.run_folder}")
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
    typer.echo(f"cancelled `{before.job}`; resume it with --resume {before.run_folder}")


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
    """How long a job waits, runs, or has ended, in the largest unit of which it is one at least."""
    began = job.ended_at or job.began_at or job.submitted_at
    seconds = max(0.0, now - began)
    for name, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {name}"
    return f"{seconds:.0f} s"
