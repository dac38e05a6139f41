"""`spotlight chaos`: jobs and sessions on a simulated cluster, disturbed by faults, each from one
seed."""

from __future__ import annotations

import time
from itertools import islice

import typer
from rich.console import Console
from rich.table import Table

from spotlight_simulation.chaos import (
    Outcome,
    run_seed,
    run_seeds,
    total_effects,
    total_situations,
)

_SHOWN = 20


def try_many(first: int, count: int, processes: int) -> int:
    """Run seeds and print what took effect and what was violated; returns the exit code."""
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with Console(stderr=True).status("") as status:
        for outcome in run_seeds(range(first, first + count), processes):
            outcomes.append(outcome)
            status.update(f"{len(outcomes)} of {count} seeds")
    console = Console()
    table = Table("fault", "took effect", title="Faults that changed something")
    table.columns[1].justify = "right"
    for kind, effects in total_effects(outcomes).items():
        table.add_row(kind, str(effects))
    console.print(table)
    covered = Table("situation", "seeds", title="Situations that promises are about")
    covered.columns[1].justify = "right"
    for situation, seeds in total_situations(outcomes).items():
        covered.add_row(situation, str(seeds))
    console.print(covered)
    bad = [outcome for outcome in outcomes if outcome.violations]
    for outcome in islice(bad, _SHOWN):
        for violation in outcome.violations:
            console.print(f"seed {outcome.seed}: {violation}", markup=False, soft_wrap=True)
    if len(bad) > _SHOWN:
        console.print(f"and {len(bad) - _SHOWN} seeds more")
    seconds = time.monotonic() - began
    sessions = sum(outcome.drove_session for outcome in outcomes)
    several = sum(outcome.jobs > 1 for outcome in outcomes)
    drove = f"{sum(outcome.jobs for outcome in outcomes) - sessions} jobs, on {several} clusters"
    drove += f" several at once, and {sessions} sessions"
    console.print(f"{count} seeds in {seconds:.1f} s: {drove}, {len(bad)} with violations")
    if bad:
        console.print(f"replay one with: spotlight chaos --seed {bad[0].seed}")
    return 1 if bad else 0


def replay(seed: int) -> int:
    """Run one seed and print its history; returns the exit code."""
    outcome, history = run_seed(seed)
    for happening in history.happenings:
        typer.echo(str(happening))
    typer.echo(f"history {outcome.digest}")
    for violation in outcome.violations:
        typer.echo(f"violated: {violation}")
    return 1 if outcome.violations else 0
