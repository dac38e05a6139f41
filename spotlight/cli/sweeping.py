"""`spotlight sweep`: a grid of jobs for a coordinator's queue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.cli.options import (
    JoinOption,
    JsonOption,
    PriorityOption,
    SetOption,
    WeightOption,
)
from spotlight.cli.reaching import asking
from spotlight.errors import RequestRefused

if TYPE_CHECKING:
    from spotlight.actors.protocol.users import JobAccepted
    from spotlight.jobs import JobSpec
    from spotlight.running.client import CoordinatorClient


def sweep(
    job: Annotated[Path, typer.Argument(help="Job file (YAML).")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="PATH=VALUE,VALUE",
            help="Values that a field is to have, such as training.learning_rate=1e-4,3e-4; may be"
            " given repeatedly, for every combination.",
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="FIRST..LAST", help="Seeds of each: 0..3, or 1,5,7.")
    ] = "",
    changes: SetOption = None,
    name: Annotated[
        str, typer.Option("--name", help="What all names begin with, instead of the job file's.")
    ] = "",
    weight: WeightOption = 1.0,
    priority: PriorityOption = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check and list the jobs.")
    ] = False,
    join: JoinOption = "",
    as_json: JsonOption = False,
) -> None:
    """Submit a job once for each combination of values and seeds, to compare the runs later."""
    import msgspec

    from spotlight.cli.job_files import read_job
    from spotlight.jobs import load_job
    from spotlight.jobs.grid import grid

    given = tuple(changes or ())
    variants = grid(name or read_job(job, given).name, over or (), seeds)
    specs = [load_job(job, [*given, *one.changes]) for one in variants]
    if dry_run:
        names = [spec.name for spec in specs]
        typer.echo(msgspec.json.encode(names).decode() if as_json else "\n".join(names))
        return
    accepted = asking(
        join, lambda client: _submit(client, specs, weight, priority, said=not as_json)
    )
    if as_json:
        typer.echo(msgspec.json.encode(accepted).decode())
    else:
        typer.echo(f"compare them with: spotlight compare {' '.join(spec.name for spec in specs)}")


async def _submit(
    client: CoordinatorClient,
    specs: list[JobSpec],
    weight: float,
    priority: int,
    *,
    said: bool,
) -> list[JobAccepted]:
    """One after the other. Raises `RequestRefused` that says how many are in the queue already."""
    accepted: list[JobAccepted] = []
    for spec in specs:
        try:
            one = await client.submit(spec, "", resume=False, weight=weight, priority=priority)
        except RequestRefused as error:
            raise RequestRefused(
                f"{spec.name}: {error} ({len(accepted)} of {len(specs)} jobs are in the queue)"
            ) from error
        accepted.append(one)
        if said:
            typer.echo(f"submitted `{spec.name}`; its files are in {one.run_folder}")
    return accepted
