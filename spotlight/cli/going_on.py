"""The commands that go on with a run: further than it got, or another way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotlight.cli.options import JoinOption, SetOption
from spotlight.cli.reaching import reaching


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run that has ended, however it did.")],
    changes: SetOption = None,
    join: JoinOption = "",
) -> None:
    """Have a running coordinator go on with a run, with the changes that --set names. On this
    machine alone, `spotlight run --resume RUN` does the same."""
    from spotlight.running.client import submit_job
    from spotlight.store.run_folder import read_continued

    folder = run.resolve()
    job, wanted = read_continued(folder, changes or ()), tuple(changes or ())
    accepted = reaching(
        join, lambda token: submit_job(token, job, str(folder), resume=True, changes=wanted)
    )
    typer.echo(f"submitted `{job.name}`; its files are in {accepted.run_folder}")


def fork(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN@ITERATION",
            help="A run folder, and after how many iterations; RUN@last for its last checkpoint.",
        ),
    ],
    changes: SetOption = None,
    run_folder: Annotated[
        Path | None,
        typer.Option("--run-folder", help="The new run's folder; default: beside the run."),
    ] = None,
) -> None:
    """Make a run folder that begins from a checkpoint which a run has kept, perhaps with changes
    that --set names; the run itself stays as it is."""
    from spotlight.running.forking import make_fork, plan_fork

    planned = plan_fork(run, changes or (), run_folder)
    make_fork(planned)
    typer.echo(f"{planned.folder}: begins after {planned.completed} iterations of {planned.run}")
    typer.echo(f"continue with: spotlight run --resume {planned.folder}")
