"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotlight import __version__

JoinOption = Annotated[
    str,
    typer.Option(
        "--join",
        "-j",
        metavar="TOKEN|@FILE",
        show_default=False,
        help="Join token of the coordinator, or the file that holds it. Default: the environment's"
        " SPOTLIGHT_JOIN, else runs/operator.token, which a coordinator in the same folder writes.",
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="Folder in which a node keeps its copies of the weights, instead of shared memory"
        " (/dev/shm).",
    ),
]
RewardSecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reward-secret",
        metavar="NAME=FILE@HOST",
        help="Let jobs name this file's content as authorization for reward servers on that HOST or"
        " HOST:PORT, and nowhere else; may be given repeatedly.",
    ),
]
MirrorOption = Annotated[
    str,
    typer.Option(
        "--mirror",
        metavar="URL",
        help="Copy each run to object storage as URL/RUN, so that it survives this machine:"
        " file://, s3:// or gs://.",
    ),
]


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spotlight {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a field of the job, such as training.learning_rate=1e-4; may be given"
        " repeatedly.",
    ),
]
