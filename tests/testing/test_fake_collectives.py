"""How simulated members denoise together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from spotlight.actors.protocol import GroupPlan, Seat
from spotlight.actors.runtime import ActorRef
from spotlight.errors import TransportError
from spotlight.testing.fake_collectives import (
    Connector,
    FakeCollectives,
    FakeGroup,
    InFakeGroup,
    State,
)
from spotlight.testing.history import History

pytestmark = pytest.mark.virtual_time

NOBODY = ActorRef("memory://w", "actor", 1)
START = State("weights", 2, ("a", "b"))


def circle_of(members: int) -> FakeGroup:
    workers = tuple(f"n/{number}" for number in range(members))
    return FakeGroup(workers, History(asyncio.get_running_loop().time))


def follower(circle: FakeGroup, stretch: int = 1, weights: str = "weights") -> asyncio.Task[int]:
    return start(InFakeGroup(circle).follow(stretch, weights, lambda: 1.0))


def start(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


async def test_all_ranks_take_the_steps_of_rank_0() -> None:
    circle = circle_of(3)
    followers = [follower(circle), follower(circle)]
    rank_0 = InFakeGroup(circle)
    rank_0.begin(1, START)
    after = await rank_0.step(START, 1.0)
    after = await rank_0.step(after, 1.0)
    rank_0.end()
    assert after == START.denoised().denoised()
    assert await asyncio.gather(*followers) == [2, 2]
    assert circle.history.violations == []


async def test_a_step_ends_when_the_last_has_come() -> None:
    circle, loop = circle_of(2), asyncio.get_running_loop()
    rank_0 = InFakeGroup(circle)
    rank_0.begin(1, START)
    step = start(rank_0.step(START, 1.0))
    await asyncio.sleep(7.0)
    assert not step.done()
    following = follower(circle)
    await step
    following.cancel()
    assert loop.time() == pytest.approx(8.0, abs=0.1)


async def test_who_waits_for_one_that_left_fails() -> None:
    circle = circle_of(2)
    rank_0 = InFakeGroup(circle)
    rank_0.begin(1, START)
    step = start(rank_0.step(START, 1.0))
    await asyncio.sleep(2.0)
    circle.break_up("n/1 is gone")
    with pytest.raises(TransportError, match="n/1 is gone"):
        await step
    with pytest.raises(TransportError, match="n/1 is gone"):
        await rank_0.step(START, 1.0)


async def test_nobody_waits_for_ever() -> None:
    circle = circle_of(2)
    with pytest.raises(TransportError, match="too long"):
        await InFakeGroup(circle).follow(1, "weights", lambda: 1.0)


async def test_who_follows_another_stretch_fails() -> None:
    circle = circle_of(2)
    InFakeGroup(circle).begin(2, START)
    with pytest.raises(TransportError, match="leads stretch 2, not 1"):
        await follower(circle, stretch=1)


async def test_ranks_with_other_weights_are_noticed() -> None:
    circle = circle_of(2)
    rank_0 = InFakeGroup(circle)
    rank_0.begin(1, START)
    following = follower(circle, weights="others")
    await rank_0.step(START, 1.0)
    following.cancel()
    assert circle.history.violations == ["the ranks of ('n/0', 'n/1') hold different latents"]


async def test_a_group_forms_once_all_have_come() -> None:
    circles = FakeCollectives(History(asyncio.get_running_loop().time))
    seats = tuple(Seat(f"n/{number}", number, NOBODY, NOBODY) for number in range(2))
    order = GroupPlan(3, seats, 1, False)
    connector = Connector(circles, lambda: "job")
    sent: list[str] = []
    encounter = connector.meet(order, 0, lambda key, value: sent.append(key))
    company = start(encounter.company())
    await asyncio.sleep(4.0)
    assert sent == ["rank 0"] and not company.done()
    encounter.deliver("rank 1", b"here")
    assert (await company).members == 2
    assert [circle.workers for circle in circles] == [("n/0", "n/1")]


@pytest.mark.parametrize("closed", [True, False])
async def test_a_group_that_does_not_form_is_an_error(closed: bool) -> None:
    circles = FakeCollectives(History(asyncio.get_running_loop().time))
    seats = tuple(Seat(f"n/{number}", number, NOBODY, NOBODY) for number in range(2))
    connector = Connector(circles, lambda: "job")
    encounter = connector.meet(GroupPlan(3, seats, 1, False), 0, lambda key, value: None)
    if closed:
        encounter.close("a newer group was planned")
    with pytest.raises(TransportError, match="newer group" if closed else "no rank 1 after"):
        await encounter.company()


async def test_a_group_is_awaited_while_one_of_it_is_left_who_does_not_know() -> None:
    circles = FakeCollectives(History(asyncio.get_running_loop().time))
    seats = tuple(Seat(f"n/{number}", 1, NOBODY, NOBODY) for number in range(2))
    circle = circles.of(GroupPlan(1, seats, 1, False))
    following = follower(circle)
    await asyncio.sleep(1.0)
    circles.lose("n/0", seen=False)
    assert circle.awaited
    circles.lose("n/1", seen=False)
    assert not circle.awaited
    circles.lose("n/1", seen=True)
    with pytest.raises(TransportError, match="n/1 is gone"):
        await following
