"""What comes after a run: its weights in a format that others load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotlight.types import ExportedWeights, ExportFormat


def export(
    run: Annotated[Path, typer.Argument(help="Run folder of a run, finished or not.")],
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
        typer.Option(help="Library that loads it: diffusers, or (adapters only) peft."),
    ] = "diffusers",
    to: Annotated[Path | None, typer.Option(help="A new folder; default RUN/exports/....")] = None,
) -> None:
    """Write the weights of a run in a format that others load."""
    from spotlight.cli.processes import run_in_process
    from spotlight.exports.plan import plan_export
    from spotlight.preflight.checks import WORKER_MODULES, require_packages

    plan = plan_export(
        run.resolve(), weights=weights, format=format, folder=to.resolve() if to else None
    )
    require_packages(WORKER_MODULES, "worker", "an export needs")
    code = run_in_process("spotlight.exports.process", plan, "the export")
    if code:
        raise typer.Exit(code)
    score = "" if plan.score is None else f", validation {plan.score:.3f}"
    typer.echo(f"weights after {plan.iteration} iterations{score}: {plan.folder}")
