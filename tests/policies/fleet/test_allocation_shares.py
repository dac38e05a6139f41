"""What shares come to over hours, on virtual time."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from spotlight.policies.fleet.allocation import Allocation, Borrower
from spotlight.timings import SharingTimings
from spotlight_simulation.lent_fleet import LentFleet, SimulatedNode

HOUR_S = 3600.0


def borrowers(*weights: float) -> list[Borrower]:
    return [
        Borrower(f"job {order}", weight, 0, order, 0, frozenset(), 60.0)
        for order, weight in enumerate(weights)
    ]


def fleet(nodes: int, seed: int, losses_per_hour: float = 0.5) -> LentFleet:
    made = [SimulatedNode(f"s{number:02}", "spot") for number in range(nodes)]
    allocation = Allocation(SharingTimings())
    return LentFleet(allocation, made, random.Random(seed), losses_per_hour=losses_per_hour)


def share_error(fleet: LentFleet) -> float:
    """By how much of its share a borrower has had more or less, at most."""
    weights = {name: each.weight for name, each in fleet.borrowers.items()}
    had, total = sum(fleet.had[name] for name in weights), sum(weights.values())
    return max(abs(fleet.had[each] / had * total / weights[each] - 1) for each in weights)


@pytest.mark.parametrize("losses_per_hour", [0.0, 0.5, 5.0])
@pytest.mark.parametrize(
    ("weights", "nodes"),
    [((1, 1, 1), 4), ((1, 2, 3), 8), ((1, 1, 2), 32), ((1, 1), 1), ((1, 1, 1), 2)],
    ids=str,
)
def test_shares_follow_the_weights_over_hours_and_nodes_seldom_move(
    weights: tuple[float, ...], nodes: int, losses_per_hour: float
) -> None:
    world = fleet(nodes, 1, losses_per_hour)
    world.begin(borrowers(*weights))
    world.run(8 * HOUR_S, period_s=10.0)
    assert share_error(world) < 0.05
    assert world.moves <= (3 if losses_per_hour < 5.0 else 4) * 8, (
        "more where all is lost all the time"
    )
    assert world.lost_to_moves < 0.03 * sum(world.had.values())


def test_shares_follow_the_weights_although_one_began_before_the_others() -> None:
    world = fleet(8, 1)
    first, *others = borrowers(1, 2, 3)
    world.begin([first])
    world.run(4 * HOUR_S, period_s=10.0)
    assert world.had[first.id] == sum(world.had.values()) - world.had[""]
    world.had = defaultdict(float)
    world.begin(others)
    world.run(8 * HOUR_S, period_s=10.0)
    assert share_error(world) < 0.05


def test_who_borrows_on_alone_has_every_node_at_once() -> None:
    world = fleet(8, 1, losses_per_hour=0.0)
    world.begin(borrowers(1, 5))
    world.run(HOUR_S)
    world.end("job 1")
    world.run(60.0)
    assert all(node.tenant == "job 0" for node in world.nodes)


def test_decisions_that_come_late_share_as_well() -> None:
    """A coordinator that is busy, or was stopped, decides every ten minutes."""
    world = fleet(8, 1)
    world.begin(borrowers(1, 2, 3))
    world.run(16 * HOUR_S, period_s=600.0)
    assert share_error(world) < 0.1


def test_nothing_is_kept_of_nodes_and_borrowers_that_are_gone() -> None:
    allocation = Allocation(SharingTimings())
    sizes = []
    for number in range(100):
        made = [SimulatedNode(f"node {number}-{each}", "reserved") for each in range(100, 108)]
        world = LentFleet(allocation, made, random.Random(number), now=1000.0 * number)
        names = (f"job {number:03}", f"other {number:03}")
        world.begin(Borrower(name, 1.0, 0, 0, 1, frozenset(), 0.0) for name in names)
        world.run(100.0)
        sizes.append(len(repr(vars(allocation))))
    assert max(sizes[50:]) <= max(sizes[:50]) + 100
