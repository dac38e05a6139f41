"""How many steps the loss of a worker may cost, for `benchmarks.preemption`. Pure.

What is lost are the steps since the last commit that was saved. A commit is copied when it is due,
and steps go on while it is on its way to the coordinator; until it is saved, a loss takes it along.
One commit is delivered at a time, so the next one may have to wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
"""A line of the trace, see `benchmarks.traced_worker`."""


@dataclass(frozen=True)
class Saved:
    """A commit that counts."""

    lease: int
    step: int
    t: float
    """When it was saved, on CLOCK_MONOTONIC."""


@dataclass(frozen=True)
class Loss:
    """What the lost worker had done of a request."""

    steps: int
    """Completed since the last commit that was saved."""
    before: int
    """Completed while that commit was on its way."""
    on_the_way: int
    """Completed since the copy of the commit after it."""


def loss(seed: int, lease: int, trace: Iterable[Record], saved: Iterable[Saved]) -> Loss:
    """What the trace of the worker that was lost with a lease, and the commits that count, say.

    Args:
        saved: of the request with this seed.
    """
    records = [record for record in trace if seed in record.get("seeds", ())]
    steps = [(record["step"], record["t"]) for record in records if "step" in record]
    copied = {record["commit"]: record["t"] for record in records if "commit" in record}
    last = max(
        (commit for commit in saved if commit.lease <= lease),
        key=lambda commit: commit.step,
        default=Saved(lease, 0, -math.inf),
    )
    lost = [step for step in copied if step > last.step]

    def taken(begin: float, end: float) -> int:
        return sum(begin < t <= end for _, t in steps)

    return Loss(
        steps=sum(step > last.step for step, _ in steps),
        before=taken(copied.get(last.step, last.t), last.t),
        on_the_way=taken(copied[min(lost)], math.inf) if lost else 0,
    )


def most_lost(every: int, before: int, on_the_way: int) -> int:
    """The most steps that a loss can cost: those until the next commit was copied, which was due
    after `every` steps but had to wait until the one before was saved and a step was over, and
    those since then.
    """
    return max(every, before + 1) + on_the_way
