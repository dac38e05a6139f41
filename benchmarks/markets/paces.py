"""How fast somebody goes with any number of spot nodes, by formulas.

Pure. The clocks are those of `benchmarks.exploration.clocks`; what an iteration of Spotlight is
worth depends on how many previews it has for each sample, and was measured for some numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from benchmarks.exploration.clocks import Clock, Fleet, Work
from benchmarks.exploration.rivals import RESERVED_GPUS
from benchmarks.exploration.settings import GPUS_OF_SPOT_NODE
from spotlight_simulation.market.batch_model import Pace

_ROWS_OF_A_SAMPLE = 4
"""Flow times that a sample is trained at in all jobs of Spotlight here."""


def fleets(nodes: int, reserved: int = RESERVED_GPUS) -> list[Fleet]:
    """With no spot node up to so many."""
    return [Fleet(reserved, count * GPUS_OF_SPOT_NODE) for count in range(nodes + 1)]


def timed(clock: Clock, work: Work, on: Iterable[Fleet]) -> list[Pace]:
    """One for each fleet; without any GPU nothing is done."""
    return [Pace(clock(work, fleet) if fleet.gpus else math.inf) for fleet in on]


def best_paces(
    clock: Clock, work: Work, measured: Sequence[Pace], on: Iterable[Fleet]
) -> list[Pace]:
    """One for each fleet: with as many previews as one of the measured paces has, whichever is
    best."""
    return [max(_choices(clock, work, measured, fleet), key=_rate) for fleet in on]


def _choices(clock: Clock, work: Work, measured: Sequence[Pace], fleet: Fleet) -> Iterable[Pace]:
    samples = work.rows * work.updates // _ROWS_OF_A_SAMPLE
    for pace in measured:
        has = msgspec.structs.replace(work, denoised=pace.previews * samples)
        seconds = clock(has, fleet) if fleet.gpus else math.inf
        yield Pace(seconds, pace.worth, pace.previews)


def faster(ones: Iterable[Pace], others: Iterable[Pace]) -> list[Pace]:
    """Of each two the faster."""
    return [max(pair, key=_rate) for pair in zip(ones, others, strict=True)]


def _rate(pace: Pace) -> float:
    return pace.rate


def less_trainers(paces: Sequence[Pace]) -> list[Pace]:
    """Where the first nodes train: with too few of them nobody does, and the others explore."""
    trainers = RESERVED_GPUS // GPUS_OF_SPOT_NODE
    return ([Pace(math.inf)] * trainers + list(paces))[: len(paces)]


def between(measured: Mapping[int, Pace], nodes: int) -> Pace:
    """On straight lines between those that were measured."""
    below = max(count for count in measured if count <= nodes)
    above = min((count for count in measured if count >= nodes), default=below)
    share = (nodes - below) / (above - below) if above > below else 0.0
    low, high = measured[below], measured[above]
    return Pace(
        *(
            getattr(low, name) + share * (getattr(high, name) - getattr(low, name))
            for name in ("iteration_s", "worth", "previews")
        )
    )
