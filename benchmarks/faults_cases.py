"""What `benchmarks.faults` does to a job, case by case: pure data."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

COORDINATOR, RESERVED, SPOT, OTHER_SPOT = "coordinator", "reserved", "spot-1", "spot-2"
TRAINER = "trainer"
WORKERS = (TRAINER, "reserved worker", "spot worker")
PROCESSES = (COORDINATOR, RESERVED, SPOT, *WORKERS)
"""A daemon by its name, without its workers; or a worker: the one that trains, another one of the
reserved node, one of a spot node."""

STOPS_S = (1.0, 2.0, 5.0, 15.0, 30.0)
PARTED_S = (3.0, 10.0, 30.0)
PAIRS = (
    (COORDINATOR, RESERVED),
    (COORDINATOR, SPOT),
    (RESERVED, SPOT),
    (SPOT, OTHER_SPOT),
)
INSIDE = ((RESERVED, RESERVED), (SPOT, SPOT))
"""The pairs of a node and its workers, and of these among them."""
STORM = 40

Kind = Literal["stop", "kill", "stall", "cut"]


@dataclass(frozen=True)
class Strike:
    """One fault."""

    kind: Kind
    who: tuple[str, ...]
    """A process, or the two ends of connections."""
    seconds: float = 0.0
    """How long it lasts; for a kill, until what was killed is started again."""

    def __str__(self) -> str:
        lasts = f" {self.seconds:g} s" if self.seconds else ""
        return f"{self.kind} {' - '.join(self.who)}{lasts}"


@dataclass(frozen=True)
class Case:
    """A job and what strikes it: (seconds after its first rollout began, strike)."""

    name: str
    strikes: tuple[tuple[float, Strike], ...]
    iterations: int = 8


def cases(rng: random.Random, *, partitions: bool, quick: bool) -> list[Case]:
    """All of them; without `partitions` those that need no network of their own."""
    strikes = [
        *(Strike("stop", (who,), seconds) for who in PROCESSES for seconds in STOPS_S),
        *(Strike("kill", (who,)) for who in PROCESSES),
    ]
    if partitions:
        kinds: tuple[Kind, ...] = ("stall", "cut")
        strikes += [Strike(k, pair, s) for k in kinds for pair in PAIRS for s in PARTED_S]
        strikes += [Strike("stall", pair, s) for pair in INSIDE for s in PARTED_S]
    if quick:
        wanted = (f"kill {TRAINER}", f"stall {COORDINATOR} - {RESERVED} 3 s")
        return [
            _single(strike, rng, latest_s=2.0, iterations=4)
            for strike in strikes
            if str(strike) in wanted
        ]
    return [*(_single(strike, rng) for strike in strikes), storm(rng, partitions=partitions)]


def storm(rng: random.Random, *, partitions: bool) -> Case:
    """Forty strikes on one job, some at once."""
    at_s, strikes = 0.0, []
    for _ in range(STORM):
        at_s += rng.uniform(0.5, 3.5)
        strikes.append((round(at_s, 2), _any_strike(rng, partitions=partitions)))
    return Case(f"storm of {STORM}", tuple(strikes), iterations=60)


def _single(strike: Strike, rng: random.Random, latest_s: float = 5.0, iterations: int = 8) -> Case:
    at_s = round(rng.uniform(0.3, latest_s), 2)
    return Case(str(strike), ((at_s, strike),), iterations)


def _any_strike(rng: random.Random, *, partitions: bool) -> Strike:
    kinds: Sequence[Kind] = ("stop", "kill", "stall", "cut") if partitions else ("stop", "kill")
    kind = rng.choice(kinds)
    seconds = round(rng.uniform(0.5, 12.0), 1)
    if kind in ("stop", "kill"):
        return Strike(kind, (rng.choice(PROCESSES),), seconds if kind == "stop" else 0.0)
    return Strike(kind, rng.choice(PAIRS), seconds)
