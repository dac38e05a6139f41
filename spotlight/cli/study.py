"""`spotlight study`: experiments on runs, each a process of its own, and what they found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.cli.processes import run_in_process

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spotlight.policies.exploration.rank_fidelity import Estimate
    from spotlight.studies.staleness_record import Comparison, StalenessRecord

study = typer.Typer(
    help="Measure on a run whether Spotlight's assumptions hold.", no_args_is_help=True
)


@study.command()
def staleness(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    seeds: Annotated[
        int | None,
        typer.Option(help="Seeds per prompt; default twice the group size, and 16 at least."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Training prompts to score.")] = 16,
    lags: Annotated[
        str, typer.Option(help="Lags of old weights, in iterations; trains for the greatest.")
    ] = "1,2,4,8",
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random choice.")] = 0,
) -> None:
    """Measure whether the ranking of seeds survives updates: train on, and score with old weights.

    Writes studies/staleness.json and .svg into the run folder; everything else in it stays.
    """
    from rich.console import Console

    from spotlight.preflight.checkpoint_facts import inspect_checkpoint
    from spotlight.preflight.checks import check_packages
    from spotlight.studies.staleness_plan import plan_staleness

    plan = plan_staleness(run.resolve(), seeds=seeds, prompts=prompts, lags=lags, seed=seed)
    check_packages(plan.job, inspect_checkpoint(plan.job.model))
    from spotlight.studies.staleness_record import read_record

    code = run_in_process("spotlight.studies.staleness", plan, "the study")
    if code:
        raise typer.Exit(code)
    console = Console()
    console.print(results(read_record(Path(plan.run))))
    console.print(f"results: {Path(plan.run) / 'studies'}", soft_wrap=True, markup=False)


def results(record: StalenessRecord) -> RenderableType:
    """The figures as a table, with what is needed to read it."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("scored with", "Spearman", "tau-b", "kept/best", "flat"):  # fits 80 characters
        table.add_column(name, no_wrap=True, justify="left" if name == "scored with" else "right")
    for one in record.comparisons:
        if (one.treatment, one.lag) != ("rollout", 0):
            table.add_row(*_cells(one))
    newest = next(one for one in record.comparisons if one.treatment == "rollout" and not one.lag)
    at_random = newest.fidelity.random_over_oracle
    flat = newest.fidelity.constant
    said = [
        f"{len(record.prompts)} prompts x {len(record.seeds[0])} seeds, {record.keep} kept, weights"
        f" of iteration {record.completed + record.trained} (mean reward {newest.reward:.3f})",
        "Spearman, tau-b: in-prompt, median over prompts [95 % bootstrap interval]",
        "kept/best: contrast of the seeds kept, divided by that of the best choice;"
        f" a random choice: {'-' if at_random is None else f'{at_random:.2f}'}",
        "flat: prompts where all seeds score the same in either scoring; no correlation counts"
        f" them ({flat} with the newest weights)",
        _repetition(record),
    ]
    return Group(table, *(Text(line, style="dim") for line in said))


def _repetition(record: StalenessRecord) -> str:
    if record.stochastic:
        return "repeat: newest weights and same initial latents, but other noise in its steps"
    return f"repeat: other batches; 1 by construction, as `{record.sampler}` adds no noise"


def _cells(one: Comparison) -> tuple[str, ...]:
    name = {
        "rollout": f"lag {one.lag}",
        "repeat": "repeat, lag 0",
        "preview": f"preview, lag {one.lag}",
        "shuffled": f"shuffled lag {one.lag}",
    }[one.treatment]
    fidelity = one.fidelity
    return (
        name,
        _estimate(fidelity.spearman_median),
        _value(fidelity.kendall_median),
        _estimate(fidelity.realised_over_oracle),
        str(fidelity.constant) if one.treatment != "shuffled" else "",
    )


def _value(estimate: Estimate) -> str:
    return "-" if estimate.value is None else f"{estimate.value:.2f}"


def _estimate(estimate: Estimate) -> str:
    if estimate.interval is None:
        return _value(estimate)
    low, high = estimate.interval
    return f"{_value(estimate)} [{low:.2f}, {high:.2f}]"
