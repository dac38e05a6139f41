"""What comes after a run: the same one further, another one from there, or its weights in a format
that others load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotlight.cli.completing import run_names
from spotlight.cli.options import (
    JoinOption,
    JsonOption,
    PriorityOption,
    SetOption,
    WaitOption,
    WatchOption,
    WeightOption,
)
from spotlight.cli.reaching import asking
from spotlight.types import ExportedWeights, ExportFormat


def resume(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|JOB",
            help="Folder of a run that has ended, or the name of it or its job.",
            autocompletion=run_names,
        ),
    ],
    changes: SetOption = None,
    weight: WeightOption = 1.0,
    priority: PriorityOption = 0,
    wait: WaitOption = False,
    watch: WatchOption = False,
    join: JoinOption = "",
    as_json: JsonOption = False,
) -> None:
    """Have a coordinator go on with a run that has ended, perhaps with changes (--set)."""
    from spotlight.cli.jobs import go_on_with
    from spotlight.cli.run_choice import choose_run
    from spotlight.store.run_folder import read_continued

    folder = choose_run(run, join).resolve()
    job, wanted = read_continued(folder, changes or ()), tuple(changes or ())
    accepted = asking(
        join,
        lambda client: client.submit(
            job, str(folder), resume=True, changes=wanted, weight=weight, priority=priority
        ),
    )
    go_on_with(accepted, join, wait=wait, watch=watch, as_json=as_json)


def fork(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN@ITERATION",
            help="Folder or name of a run, and after how many iterations; RUN@last for its last"
            " checkpoint.",
            autocompletion=run_names,
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


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Folder or name of a run, finished or not.",
            autocompletion=run_names,
        ),
    ],
    weights: Annotated[
        ExportedWeights,
        typer.Option(
            help="best: the averaged weights with the best validation; checked: those that are best"
            " by validation.rewards; ema: those of the newest checkpoint; newest: its weights as"
            " trained."
        ),
    ] = "best",
    format: Annotated[
        ExportFormat,
        typer.Option(
            help="Who loads it: diffusers, (adapters only) peft or comfyui, or as a whole pipeline"
            " both diffusers and `model.checkpoint` of a job."
        ),
    ] = "diffusers",
    to: Annotated[Path | None, typer.Option(help="A new folder; default RUN/exports/....")] = None,
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            metavar="ORGANISATION/NAME",
            help="Bring it to a repository of the Hugging Face hub too, a private one if it is"
            " new; needs a token that may write (`hf auth login`, or HF_TOKEN).",
        ),
    ] = None,
) -> None:
    """Write the weights of a run, with a model card, in a format that others load."""
    from spotlight.cli.processes import run_in_process
    from spotlight.exports.hub import push, require_pushable
    from spotlight.exports.plan import plan_export
    from spotlight.preflight.checks import WORKER_MODULES
    from spotlight.preflight.packages import require_packages
    from spotlight.running.run_names import find_run

    folder = find_run(run) or Path(run)
    if push_to_hub is not None:
        require_pushable(push_to_hub)
    plan = plan_export(
        folder.resolve(), weights=weights, format=format, folder=to.resolve() if to else None
    )
    require_packages(WORKER_MODULES, "worker", "an export needs")
    code = run_in_process("spotlight.exports.process", plan, "the export")
    if code:
        raise typer.Exit(code)
    score = "" if plan.score is None else f", validation {plan.score:.3f}"
    typer.echo(f"weights after {plan.iteration} iterations{score}: {plan.folder}")
    if push_to_hub is not None:
        typer.echo(f"pushed to {push(Path(plan.folder), push_to_hub)}")
