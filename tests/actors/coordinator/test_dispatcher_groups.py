"""The dispatcher and SP groups of several members: who is given work, how long it may take, and
what waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from desk_kit import Desk, ids, steps
from job_kit import SETTINGS, requests
from spotlight.actors.coordinator.dispatch_state import Backlog

from spotlight.actors.protocol import Grant, Recall, RemoveWorkers, ReturnLease, Revoke

pytestmark = pytest.mark.virtual_time


async def group(desk: Desk, leader: str, *followers: str, **pull: Any) -> None:
    """Workers that were alone form a group."""
    for name in (leader, *followers):
        if name not in desk.workers:
            await desk.add(name)
    await desk.pull(leader, followers=followers, **pull)


async def test_those_who_follow_get_nothing(desk: Desk) -> None:
    await group(desk, "a", "b", "c")
    await desk.submit(*requests(20))
    assert len(desk.workers["a"].all(Grant)) == 2
    assert desk.workers["b"].all(Grant) == desk.workers["c"].all(Grant) == []


async def test_one_who_followed_gets_work_as_soon_as_it_pulls_for_itself(desk: Desk) -> None:
    await group(desk, "a", "b")
    await desk.submit(*requests(40))
    await desk.pull("b", credits=0, follows=True)
    assert desk.statistics.groups.of("b") == ("a", 2), "it says only that it takes nothing"
    await desk.pull("b")
    assert len(desk.workers["b"].all(Grant)) == 2
    assert desk.statistics.groups.of("a") == ("a", 1)


async def test_whoever_is_in_a_group_no_more_is_alone_again(desk: Desk) -> None:
    groups = desk.statistics.groups
    await group(desk, "a", "b", "c", "d")
    assert {groups.of(name) for name in "abcd"} == {("a", 4)}
    await group(desk, "a", "b")
    await group(desk, "c", "d")
    assert [groups.of(name) for name in "abcd"] == [("a", 2), ("a", 2), ("c", 2), ("c", 2)]
    await group(desk, "d", "a", "b", "c")
    assert {groups.of(name) for name in "abcd"} == {("d", 4)}
    await desk.tell(RemoveWorkers(("d",), "preempted"))
    assert [groups.of(name) for name in "abc"] == [("a", 1), ("b", 1), ("c", 1)]


async def test_losing_one_who_follows_costs_its_group_nothing(desk: Desk) -> None:
    await group(desk, "a", "b", "c")
    await desk.submit(*requests(4))
    grant = desk.workers["a"].last(Grant)
    await desk.tell(RemoveWorkers(("b",), "preempted"))
    assert desk.statistics.reissued == 0
    await group(desk, "a", "c", holds=(grant,))
    assert desk.workers["a"].all(Revoke) == []
    assert await desk.complete("a", grant.lease) == 4
    assert desk.statistics.late == 0


async def test_what_a_lost_leader_held_goes_on_at_once_from_its_commit(desk: Desk) -> None:
    await group(desk, "a", "b")
    await desk.submit(*requests(4))
    grant = desk.workers["a"].last(Grant)
    await desk.commit("a", grant, 1)
    await desk.tell(RemoveWorkers(("a",), "preempted"))
    resumed = desk.workers["b"].last(Grant)
    assert (ids(resumed), steps(resumed)) == (ids(grant), [1] * 4)


async def test_a_group_of_another_size_keeps_the_leases_of_its_leader(desk: Desk) -> None:
    await group(desk, "a", "b", "c", "d")
    await desk.submit(*requests(4))
    grant = desk.workers["a"].last(Grant)
    for followers in (("b",), (), ("b", "c", "d")):
        await group(desk, "a", *followers, holds=(grant,))
    assert desk.workers["a"].all(Revoke) == []
    assert len(desk.grants()) == 1
    assert await desk.complete("a", grant.lease) == 4


async def test_one_who_follows_gives_back_what_it_has_in_its_time(desk: Desk) -> None:
    worker = await desk.add("b")
    await desk.submit(*requests(4))
    grant = worker.last(Grant)
    free = await desk.add("free", credits=1)
    desk.profile.measure(SETTINGS, 1, 1.0)
    await group(desk, "a", "b", credits=0)
    for _ in range(3):
        await desk.pull("b", credits=0, follows=True, holds=(grant,))
        await asyncio.sleep(1.0)
    assert worker.all(Recall) == worker.all(Revoke) == []
    await desk.commit("b", grant, 1)
    await desk.tell(ReturnLease("b", 1, grant.lease))
    assert (ids(free.last(Grant)), steps(free.last(Grant))) == (ids(grant), [1] * 4)
    assert desk.statistics.reissued == 0


async def test_near_the_end_nothing_waits_behind_a_busy_group(desk: Desk) -> None:
    await group(desk, "a", "b", "c", "d")
    await desk.submit(*requests(12))
    assert len(desk.workers["a"].all(Grant)) == 2, "8 that wait are more than a batch for a group"
    await desk.complete("a", desk.workers["a"].all(Grant)[0].lease)
    assert len(desk.workers["a"].all(Grant)) == 2, "4 are not"


# --- how long it takes --------------------------------------------------------------------------


async def deliver(desk: Desk, name: str, members: int, step_s: float) -> None:
    grant = desk.workers[name].last(Grant)
    done = await desk.deliver(name, grant, members=members, seconds=step_s * 2)
    assert done.accepted == len(grant.requests)


async def test_what_groups_deliver_is_measured_by_the_number_of_their_members(desk: Desk) -> None:
    for name in "bcd":
        await desk.add(name, credits=0)
    await group(desk, "a", "b", "c", "d", credits=1)
    await desk.submit(*requests(12))
    await deliver(desk, "a", members=4, step_s=2.0)
    await group(desk, "a", credits=1)
    await deliver(desk, "a", members=1, step_s=7.0)
    assert desk.profile.by_degree(SETTINGS, (1, 4)) == {1: 7.0, 4: 2.0}
    before = desk.profile.times.to_dict()
    await deliver(desk, "a", members=0, step_s=99.0)
    assert desk.profile.times.to_dict() == before, "it regrouped on the way"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_time_that_cannot_be_is_not_measured(desk: Desk, seconds: float) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(4))
    assert (await desk.deliver("a", worker.last(Grant), seconds=seconds)).accepted == 4
    assert desk.profile.step_s(SETTINGS, 1) is None


async def test_commits_follow_the_pace_of_the_group_as_it_is(desk: Desk) -> None:
    for name in "bcd":
        await desk.add(name, credits=0)
    await group(desk, "a", "b", "c", "d", credits=1)
    await desk.submit(*requests(4))
    await desk.commit("a", desk.workers["a"].last(Grant), 1, cost_s=100.0)
    await deliver(desk, "a", members=4, step_s=1.0)
    long = msgspec.structs.replace(SETTINGS, steps=1000)
    more = [msgspec.structs.replace(r, settings=long) for r in requests(16)[4:]]
    for name in "xyz":  # losses, without which nothing need be committed
        await desk.add(name, credits=0)
        await desk.tell(RemoveWorkers((name,), "preempted"))
    await desk.submit(*more)
    grant = desk.workers["a"].last(Grant)
    await group(desk, "a", credits=1, holds=(grant,))
    await deliver(desk, "a", members=4, step_s=1.0)
    alone = desk.workers["a"].last(Grant)
    assert 1 <= 2 * alone.commit_every < grant.commit_every, "steps are longer, so fewer are lost"


async def wait_with(desk: Desk, grant: Grant, seconds: int, *followers: str) -> list[Recall]:
    for _ in range(seconds):
        await asyncio.sleep(1.0)
        await group(desk, "a", *followers, credits=1, holds=(grant,))
    return desk.workers["a"].all(Recall)


async def test_a_lone_worker_is_not_slow_because_a_group_is_fast(desk: Desk) -> None:
    await group(desk, "g", "h", "i", "j", credits=1)
    await desk.add("a", credits=1)
    await desk.submit(*requests(8))
    await deliver(desk, "g", members=4, step_s=1.0)
    grant = desk.workers["a"].last(Grant)
    alone = desk.profile.step_s(SETTINGS, 1)
    assert alone is not None and alone > 3.0, "estimated from the group's"
    assert await wait_with(desk, grant, 10) == [], "far slower than the group, but not for one"
    assert len(await wait_with(desk, grant, 12)) == 1, "and slow for one"


async def test_a_group_that_changed_its_size_is_given_time_anew(desk: Desk) -> None:
    await desk.add("free", credits=1)
    await group(desk, "a", credits=1)
    await desk.submit(*requests(8))
    await deliver(desk, "free", members=1, step_s=4.0)
    desk.profile.measure(SETTINGS, 4, 1.0)
    grant = desk.workers["a"].last(Grant)
    assert await wait_with(desk, grant, 20) == [], "within three times of eight seconds"
    assert await wait_with(desk, grant, 5, "b", "c", "d") == [], "for a group of four it is late"
    assert len(await wait_with(desk, grant, 5, "b", "c", "d")) == 1


# --- what waits ---------------------------------------------------------------------------------


async def test_the_backlog_is_what_is_not_denoised_yet(desk: Desk) -> None:
    await desk.add("a", credits=1)
    await desk.submit(*requests(10), *requests(3, "evaluation", version=7))
    rollouts, evaluations = desk.statistics.backlog
    assert rollouts == Backlog("rollout", SETTINGS, 6, Counter({"node of a": 1}))
    assert rollouts.batches == 3, "6 requests are two batches of at most 4"
    assert evaluations == Backlog("evaluation", SETTINGS, 3, Counter())
    for _ in range(3):
        await desk.complete("a", desk.workers["a"].last(Grant).lease)
    assert desk.statistics.backlog == (evaluations,), "what waits for its scores is denoised"


async def test_a_change_is_told_when_work_comes_ends_or_becomes_scarce(desk: Desk) -> None:
    for name in "abc":
        await desk.add(name, credits=1)
    desk.backlogs.clear()
    told: list[int] = []

    async def then() -> list[int]:
        new = [sum(one.batches for one in backlog) for backlog in desk.backlogs[len(told) :]]
        told.extend(new)
        return new

    assert await then() == []
    await desk.submit(*requests(24))
    assert await then() == [6]
    for left in (5, 4, 3):
        await desk.complete("a", desk.workers["a"].last(Grant).lease)
        assert await then() == [], f"{left} are enough for three"
    await desk.complete("a", desk.workers["a"].last(Grant).lease)
    assert await then() == [2]
    await desk.complete("b", desk.workers["b"].last(Grant).lease)
    assert await then() == [1]
    await desk.complete("c", desk.workers["c"].last(Grant).lease)
    assert await then() == [0]
