"""The command that replays a job on a spot market of the past."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import typer

from spotlight.cli.options import JsonOption, SetOption
from spotlight.errors import UserError

TraceOption = Annotated[
    str,
    typer.Option(
        metavar="FILE|NAME",
        help="The trace: a file, or one that ships with Spotlight, such as bamboo/p3-trace.csv.",
    ),
]
PricesOption = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE",
        help="What GPUs cost: paper-73, aws-p5, gcp-2026-09, ..., a snapshot such as"
        " aws/p5.48xlarge/us-east-2, or a file with the fields of a job's `prices`.",
    ),
]
ProfileOption = Annotated[
    Path, typer.Option(metavar="FILE", help="How long the job's work takes, as YAML.")
]
JobFile = Annotated[
    Path | None, typer.Argument(help="Job file (YAML). Default: a job of 4 + 8 GPUs.")
]
ZoneOption = Annotated[str | None, typer.Option(help="The zone, for a trace with several.")]
StartOption = Annotated[float, typer.Option(min=0.0, help="The hour of the trace to begin with.")]
HoursOption = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=100_000.0,
        help="How many hours; a shorter trace is repeated. Default: to the trace's end.",
    ),
]
NoticeOption = Annotated[
    float,
    typer.Option(min=0.0, max=3600.0, help="Seconds of notice before a node is taken; 0: none."),
]
BootOption = Annotated[
    float,
    typer.Option(
        min=0.0, max=86_400.0, help="Seconds until a node that was started runs a program."
    ),
]
SeedOption = Annotated[int, typer.Option(help="Decides which nodes are taken.")]
HolesOption = Annotated[
    bool, typer.Option("--skip-holes", help="Leave out what the trace has no data of.")
]
DepthOption = Annotated[
    Literal["model", "actors"],
    typer.Option(
        help="By formulas, or with the real coordinator and nodes on virtual time (a day of"
        " 12 GPUs takes some 10 minutes)."
    ),
]


def replay(
    trace: TraceOption,
    prices: PricesOption,
    profile: ProfileOption,
    job: JobFile = None,
    changes: SetOption = None,
    zone: ZoneOption = None,
    start: StartOption = 0.0,
    hours: HoursOption = None,
    notice: NoticeOption = 30.0,
    boot: BootOption = 300.0,
    seed: SeedOption = 0,
    skip_holes: HolesOption = False,
    depth: DepthOption = "model",
    as_json: JsonOption = False,
) -> None:
    """Say what a job would have cost on a spot market of the past, and how far it would have got;
    exit 1 if something happened that must not."""
    from spotlight.cli.job_files import read_job

    market = _market()
    stretch = market.Stretch(
        zone=zone,
        start_s=start * 3600,
        seconds=None if hours is None else hours * 3600,
        notice_s=notice,
        boot_s=boot,
        seed=seed,
        skips_holes=skip_holes,
    )
    code = market.replay(
        read_job(job or market.JOB, changes or ()),
        trace=Path(trace),
        prices=prices,
        profile=profile,
        stretch=stretch,
        depth=depth,
        as_json=as_json,
    )
    raise typer.Exit(code)


def _market() -> ModuleType:
    """The module that replays; raises `UserError` where what it needs is not installed."""
    try:
        return import_module("spotlight_simulation.market.command")
    except ModuleNotFoundError as error:
        raise UserError(
            f"replay: {error.name} is missing; pip install 'spotlight-rl[simulation]'"
        ) from error
