"""The table of requests: what an event costs does not grow with what waits, nor with who works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from table_rig import STEPS, Rig, requests, steps

from spotlight.policies.requests.instructions import GrantLease

FEW, MANY = 20, 160
LOGARITHM = 8 * 8
"""For 8 times as many, so many calls more: a search takes 3 comparisons more, and an event makes
some dozens of searches."""


def calls(event: Callable[[], object]) -> int:
    """Calls of functions during an event, every step of a generator among them."""
    count = 0

    def note(frame: FrameType, what: str, arg: object) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    sys.setprofile(note)
    try:
        event()
    finally:
        sys.setprofile(None)
    return count


def pool(rig: Rig, workers: int, name: str) -> list[GrantLease]:
    """Workers, each on a node of its own, take a request each and say that they have it."""
    before = len(rig.grants())
    for number in range(workers):
        rig.add(f"{name}{number}", batch=1, credits=1)
    granted = rig.grants()[before:]
    for grant in granted:
        rig.report(grant.worker, grant, batch=1, credits=1)
    return granted


def lost_twice(waiting: int) -> tuple[Rig, list[GrantLease]]:
    """Requests were lost with two nodes each: so many of them wait, each alone, and workers that
    might take a second one hold twice as many."""
    rig = Rig()
    rig.submit(*requests(3 * waiting))
    for name in ("a", "b"):
        for grant in pool(rig, 3 * waiting, name):
            rig.lose(grant.worker)
    granted = pool(rig, 2 * waiting, "c")
    for grant in granted:
        rig.report(grant.worker, grant, batch=1)
    return rig, granted


def report(rig: Rig, granted: list[GrantLease]) -> Callable[[], object]:
    return lambda: rig.report(granted[0].worker, granted[0], batch=1)


def complete(rig: Rig, granted: list[GrantLease]) -> Callable[[], object]:
    return lambda: rig.complete(granted[0])


def commit(rig: Rig, granted: list[GrantLease]) -> Callable[[], object]:
    return lambda: rig.commit(granted[0], 3)


def give_back(rig: Rig, granted: list[GrantLease]) -> Callable[[], object]:
    return lambda: rig.give_back(granted[0])


def lose(rig: Rig, granted: list[GrantLease]) -> Callable[[], object]:
    return lambda: rig.lose(granted[0].worker)


def join(rig: Rig, granted: list[GrantLease]) -> Callable[[], object]:
    return lambda: rig.add("new")


def submit(rig: Rig, granted: list[GrantLease]) -> Callable[[], object]:
    return lambda: rig.submit(*requests(1, "evaluation"))


@pytest.mark.parametrize("event", [report, complete, commit, give_back, lose, join, submit])
def test_an_event_costs_no_more_where_many_requests_were_lost_twice(
    event: Callable[[Rig, list[GrantLease]], Callable[[], object]],
) -> None:
    few, many = (calls(event(*lost_twice(waiting))) for waiting in (FEW, MANY))
    assert many <= few + LOGARITHM


def test_an_event_costs_no_more_where_many_rollouts_wait_for_the_place_of_evaluations() -> None:
    def busy(waiting: int) -> Callable[[], object]:
        rig, granted = lost_twice(waiting)
        rig.submit(*requests(1, "evaluation"))
        rig.add("evaluates", rollout_versions=())
        assert rig.last().requests[0].kind == "evaluation"
        return report(rig, granted)

    few, many = (calls(busy(waiting)) for waiting in (FEW, MANY))
    assert many <= few + LOGARITHM


def test_a_worker_that_comes_back_costs_no_more_where_many_requests_were_lost_with_others() -> None:
    def comes_back(workers: int) -> Callable[[], object]:
        rig = Rig()
        rig.submit(*requests(workers))
        for grant in pool(rig, workers, "a"):
            rig.lose(grant.worker)
        return lambda: rig.join("a0")

    few, many = (calls(comes_back(workers)) for workers in (FEW, MANY))
    assert many <= few + LOGARITHM


def test_an_event_costs_no_more_where_many_workers_score_and_more_is_to_be_scored() -> None:
    def busy(workers: int) -> Callable[[], object]:
        rig = Rig()
        rig.submit(*requests(2 * workers))
        for grant in pool(rig, 2 * workers, "a"):
            rig.commit(grant, STEPS)
            rig.leave(grant.worker)
            rig.lose(grant.worker, announced=True)
        granted = pool(rig, workers, "b")
        assert {steps(grant)[0] for grant in granted} == {STEPS}
        return lambda: rig.report("b0", granted[0], batch=1, credits=1)

    few, many = (calls(busy(workers)) for workers in (FEW, MANY))
    assert many <= few + LOGARITHM
