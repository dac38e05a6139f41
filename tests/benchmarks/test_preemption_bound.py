"""The most steps that a loss costs, against the rule by which commits are taken."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.preemption_bound import Loss, Record, Saved, loss, most_lost
from spotlight.policies.commit_interval import commit_due

STEPS = 40
SEED, LEASE = 7, 3


def lost_at(
    moment: float, every: int, deliveries: Sequence[float], hop: float = 0.0
) -> tuple[list[Record], list[Saved]]:
    """The trace, and the commits that count, of a worker that takes a step each second and is
    lost at a moment. The n-th commit takes so many seconds to be delivered, and some more until it
    counts.
    """
    trace: list[Record] = []
    saved: list[Saved] = []
    last, delivered = 0, -math.inf
    for step in range(1, STEPS + 1):
        if step > moment:
            break
        trace.append({"step": step, "t": float(step), "seeds": [SEED, SEED + 1]})
        if not commit_due(step, STEPS, last, every, urgent=False, delivering=step < delivered):
            continue
        last, delivered = step, step + deliveries[len(saved) % len(deliveries)]
        trace.append({"commit": step, "t": float(step), "seeds": [SEED, SEED + 1]})
        saved.append(Saved(LEASE, step, delivered + hop))
    return trace, [commit for commit in saved if commit.t <= moment]


def cost(
    moment: float, every: int, deliveries: Sequence[float], hop: float = 0.0
) -> tuple[Loss, int]:
    """What is lost then, and the most that can be."""
    trace, saved = lost_at(moment, every, deliveries, hop)
    lost = loss(SEED, LEASE, trace, saved)
    return lost, most_lost(every, lost.before, lost.on_the_way)


@given(
    moment=st.floats(0, STEPS + 1),
    every=st.integers(1, STEPS),
    deliveries=st.lists(st.floats(0, 12), min_size=1, max_size=5),
    hop=st.floats(0, 3),
)
def test_a_loss_never_costs_more(
    moment: float, every: int, deliveries: list[float], hop: float
) -> None:
    lost, most = cost(moment, every, deliveries, hop)
    assert lost.steps <= most


@pytest.mark.parametrize(
    ("deliveries", "worst"),
    [([0.5], 5), ([2.5], 7), ([4.9], 9), ([9.5], 19)],
)
def test_it_costs_the_interval_and_the_steps_while_a_commit_is_on_its_way(
    deliveries: list[float], worst: int
) -> None:
    """After an interval of 5; or, where delivering takes longer, after that, twice."""
    costs = [cost(tenth / 10, 5, deliveries) for tenth in range(10 * STEPS)]
    assert max(lost.steps for lost, _ in costs) == worst
    assert max(most for _, most in costs) == worst


def test_a_commit_that_came_with_the_lease_counts() -> None:
    trace: list[Record] = [{"step": step, "t": float(step), "seeds": [SEED]} for step in (5, 6, 7)]
    earlier = [Saved(LEASE - 1, 2, 1.0), Saved(LEASE - 1, 4, 2.0)]
    assert loss(SEED, LEASE, trace, earlier) == Loss(steps=3, before=0, on_the_way=0)


def test_commits_of_whoever_went_on_do_not_count() -> None:
    trace: list[Record] = [{"step": step, "t": float(step), "seeds": [SEED]} for step in (1, 2, 3)]
    later = [Saved(LEASE + 1, 3, 9.0)]
    assert loss(SEED, LEASE, trace, later) == Loss(steps=3, before=0, on_the_way=0)


def test_steps_of_other_requests_do_not_count() -> None:
    trace: list[Record] = [{"step": 1, "t": 1.0, "seeds": [SEED + 1]}, {"formed": 1, "t": 1.0}]
    assert loss(SEED, LEASE, trace, []).steps == 0
