"""Does the ranking of seeds survive updates? `python -m benchmarks.staleness RUN` measures it on a
run, prints what it found as a table, and leaves it in the run folder; see docs/staleness.md.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.staleness.staleness_plan import plan_staleness
from benchmarks.staleness.staleness_record import Comparison, StalenessRecord, read_record
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.cli.lines import one_line
from spotlight.errors import SpotlightError, UserError
from spotlight.process_start import standard_streams

if TYPE_CHECKING:
    from rich.console import RenderableType

    from benchmarks.staleness.rank_fidelity import Estimate

_CANCELLED = 130

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command. What the user can mend, and a study that fails, is one line on standard
    error and exit code 2 or 1."""
    with standard_streams("staleness"):
        log_as_json_lines(logging.ERROR)
        try:
            app()
        except UserError as error:
            _fail(error, error.exit_code)
        except SpotlightError as error:
            _fail(error, 1)


def _fail(error: SpotlightError, code: int) -> None:
    sys.stderr.write(f"staleness: {one_line(error)}\n")
    sys.exit(code)


@app.command()
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

    plan = plan_staleness(run.resolve(), seeds=seeds, prompts=prompts, lags=lags, seed=seed)
    check_packages(plan.job, inspect_checkpoint(plan.job.model))
    from benchmarks.staleness.study import run_study  # torch: not for what is refused

    try:
        run_study(plan, _say)
    except KeyboardInterrupt:
        raise typer.Exit(_CANCELLED) from None
    console = Console()
    console.print(results(read_record(Path(plan.run))))
    console.print(f"results: {Path(plan.run) / 'studies'}", soft_wrap=True, markup=False)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


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


if __name__ == "__main__":
    main()
