"""What tests of invariants do to histories, and to those that make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotlight_simulation.chaos import run_seed
from spotlight_simulation.faults import FaultKind
from spotlight_simulation.history import Happening, History


def alter(history: History, kind: str, number: int, **facts: Any) -> None:
    """Let the number-th happening of a kind have been another."""
    happenings = history.happenings
    places = [place for place, each in enumerate(happenings) if each.kind == kind]
    old = happenings[places[number]]
    changed = tuple((name, facts.get(name, value)) for name, value in old.facts)
    happenings[places[number]] = Happening(old.time_s, old.kind, changed)


def is_found(violation: str, kinds: Sequence[FaultKind], seeds: int | Sequence[int] = 12) -> bool:
    """Whether a seed shows it; those after the first that does are not run."""
    return any(
        violation in what
        for seed in (range(seeds) if isinstance(seeds, int) else seeds)
        for what in run_seed(seed, kinds)[0].violations
    )
