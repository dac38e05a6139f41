"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotlight import __version__
from spotlight.cli.completing import job_names, node_names, run_names
from spotlight.errors import UserError
from spotlight.types import HIGHEST_PRIORITY, MOST_WEIGHT

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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a field of the job, such as training.learning_rate=1e-4; may be given"
        " repeatedly.",
    ),
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until the job has ended; the exit code says how.")
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Show the job until it has ended; the exit code says how.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Do it even if a job cannot train then, and has to wait.")
]


def _weight_of_job(weight: float) -> float:
    if not 0 <= weight <= MOST_WEIGHT:
        raise UserError(
            f"--weight {weight:g}: must be from 0 to {MOST_WEIGHT}; a job of weight 0 gets the spot"
            " nodes that nobody else wants"
        )
    return weight


def priority_of_jobs(priority: int) -> int:
    """What `--priority` says; raises `UserError` if no job may have it."""
    if not -HIGHEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        raise UserError(
            f"--priority {priority}: must be from -{HIGHEST_PRIORITY} to {HIGHEST_PRIORITY}"
        )
    return priority


WeightOption = Annotated[
    float,
    typer.Option(
        "--weight",
        callback=_weight_of_job,
        help="Its share of the spot nodes is in proportion to it, from 0 (gets what nobody else"
        f" wants) to {MOST_WEIGHT}.",
    ),
]
PriorityOption = Annotated[
    int,
    typer.Option(
        "--priority",
        callback=priority_of_jobs,
        help=f"Jobs of a higher one begin first: from -{HIGHEST_PRIORITY} to {HIGHEST_PRIORITY};"
        " of a submitter at most that of its join token.",
    ),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Name or id of a job; by default that which runs for the longest.",
        autocompletion=job_names,
        show_default=False,
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|JOB",
        help="A run folder, the name of a run or of a job, or `last`.",
        autocompletion=run_names,
        show_default=False,
    ),
]
NodeArgument = Annotated[str, typer.Argument(help="Name of the node.", autocompletion=node_names)]
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
PricesOption = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        metavar="FILE",
        help="What GPUs cost: a file (YAML or JSON) with the fields of a job's section `prices`."
        " It comes before what jobs say.",
    ),
]


WebOption = Annotated[
    str,
    typer.Option(
        "--web",
        metavar="[HOST:PORT]",
        show_default=False,
        help="Serve the live page there while the run lasts, and print its link; by default on any"
        " free port of this machine, for this machine alone.",
    ),
]
WebCertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--web-certificate",
        metavar="FILE",
        help="Certificate of the page, if other machines reach it and browsers are to know it.",
    ),
]
WebKeyOption = Annotated[
    Path | None, typer.Option("--web-key", metavar="FILE", help="Key of that certificate.")
]
WebPlainOption = Annotated[
    bool,
    typer.Option(
        "--web-plain",
        help="Serve the page to other machines without TLS: their network is private, or a proxy"
        " encrypts.",
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
