"""The dispatcher and workers that leave, are slow, or fall silent."""

from __future__ import annotations

import asyncio

import pytest
from desk_kit import Desk, ids, images, steps
from job_kit import requests, settle

from spotlight.actors.protocol import (
    Grant,
    Recall,
    RemoveWorkers,
    ReturnLease,
    ScoreGrant,
)

pytestmark = pytest.mark.virtual_time


async def test_a_leaving_worker_gets_nothing_until_its_notice_is_withdrawn(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.leave("a")
    await desk.submit(*requests(1))
    assert worker.all(Grant) == []
    await desk.leave("a", cancelled=True)
    assert len(worker.all(Grant)) == 1


async def test_a_leaving_worker_scores_nothing(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    other = await desk.add("other")
    await desk.leave("a")
    await desk.complete("a", worker.last(Grant).lease)
    assert worker.all(ScoreGrant) == []
    assert len(other.all(ScoreGrant)) == 1


async def test_what_a_leaving_worker_holds_is_recalled_once_another_is_free(desk: Desk) -> None:
    leaving = await desk.add("leaving")
    await desk.submit(*requests(1))
    grant = leaving.last(Grant)
    await desk.leave("leaving")
    assert leaving.all(Recall) == [], "nobody else could do it"
    free = await desk.add("free")
    assert [recall.leases for recall in leaving.all(Recall)] == [(grant.lease,)]
    await desk.pull("free")
    assert len(leaving.all(Recall)) == 1
    assert desk.statistics.recalled == 1
    await desk.commit("leaving", grant, 1)
    await desk.tell(ReturnLease("leaving", 1, grant.lease))
    assert (ids(free.last(Grant)), steps(free.last(Grant))) == (ids(grant), [1])


async def test_nothing_is_recalled_for_a_worker_that_has_other_work(desk: Desk) -> None:
    leaving = await desk.add("leaving", credits=1)
    await desk.submit(*requests(8))
    free = await desk.add("free", credits=1)
    await desk.leave("leaving")
    assert len(free.all(Grant)) == 1
    assert leaving.all(Recall) == []


async def test_nothing_is_recalled_for_a_worker_without_the_weights(desk: Desk) -> None:
    leaving = await desk.add("leaving")
    await desk.submit(*requests(1))
    await desk.leave("leaving")
    await desk.add("free", rollout=(1,))
    assert leaving.all(Recall) == []


async def slow_down(desk: Desk, slow: str, fast: str) -> Grant:
    """Both do a batch of two steps in two seconds; then the slow one hangs in its second."""
    await desk.submit(*requests(8))
    for name in (slow, fast):
        grant = desk.workers[name].last(Grant)
        await desk.complete(name, grant.lease)
    await desk.submit(*requests(9)[8:])
    return next(grant for grant in desk.workers[slow].all(Grant) if len(ids(grant)) == 1)


async def test_the_lease_of_a_far_slower_group_is_recalled(desk: Desk) -> None:
    await desk.add("a-slow", credits=1)
    fast = await desk.add("fast", credits=1)
    grant = await slow_down(desk, "a-slow", "fast")
    slow = desk.workers["a-slow"]
    for _ in range(5):
        await asyncio.sleep(1.0)
        await desk.pull("a-slow", credits=1, holds=(grant,))
    assert slow.all(Recall) == [], "twice as slow is not far slower"
    for _ in range(5):
        await asyncio.sleep(1.0)
        await desk.pull("a-slow", credits=1, holds=(grant,))
    assert [recall.leases for recall in slow.all(Recall)] == [(grant.lease,)]
    await desk.tell(ReturnLease("a-slow", 1, grant.lease))
    assert ids(fast.last(Grant)) == ids(grant), "and the slow one does not get it again"


async def test_a_silent_worker_gets_nothing_until_it_is_heard(desk: Desk) -> None:
    silent = await desk.add("silent")
    await desk.submit(*requests(1))
    await asyncio.sleep(60.0)
    assert len(silent.all(Grant)) == 1, "it let its lease expire"
    await desk.pull("silent")
    assert len(silent.all(Grant)) == 2


async def test_a_request_that_was_held_by_three_lost_nodes_is_given_up(desk: Desk) -> None:
    await desk.submit(*requests(1))
    for number in range(3):
        worker = await desk.add(f"worker-{number}")
        assert len(worker.all(Grant)) == 1
        await desk.tell(RemoveWorkers((f"worker-{number}",), "its process ended", ended=True))
    survivor = await desk.add("survivor")
    assert survivor.all(Grant) == []
    assert desk.given_up() == [requests(1)[0].id]
    assert desk.statistics.quarantined == [requests(1)[0].id]
    assert len(desk.event("request_quarantined")) == 1
    assert desk.statistics.open["rollout"] == 0
    await desk.submit(*requests(1))
    assert survivor.all(Grant) == []


async def test_a_batch_whose_scoring_ended_three_nodes_is_given_up(desk: Desk) -> None:
    await desk.submit(*requests(1))
    maker = await desk.add("maker")
    await desk.complete("maker", maker.last(Grant).lease)
    await desk.tell(RemoveWorkers(("maker",), "its process ended", ended=True))
    for name in ("second", "third"):
        assert len((await desk.add(name)).all(ScoreGrant)) == 1
        await desk.tell(RemoveWorkers((name,), "its process ended", ended=True))
    assert desk.given_up() == [requests(1)[0].id]
    assert desk.gone() == [images("maker", maker.last(Grant)).key]
    assert (await desk.add("survivor")).all(ScoreGrant) == []


async def test_a_coordinator_that_stood_still_suspects_nothing(desk: Desk) -> None:
    """It finds all workers out of reach at once, one after another, and all come back."""
    await desk.submit(*requests(3))
    for name in "abcdef":
        await desk.add(name)
    for name in "abcdef":
        desk.system.tell(desk.dispatcher, RemoveWorkers((name,), "unreachable"))
    await settle()
    assert desk.given_up() == []
    for name in "abcdef":
        await desk.join(name, 1)
        await desk.pull(name)
    assert desk.event("request_quarantined") == []
    assert len({id for grant in desk.grants() for id in ids(grant)}) == 3


async def test_a_worker_that_comes_back_after_it_was_out_of_reach_makes_nothing_suspect(
    desk: Desk,
) -> None:
    await desk.submit(*requests(1))
    for number in range(5):
        worker = await desk.add(f"worker-{number}")
        await desk.pull(f"worker-{number}", holds=(worker.last(Grant),))
        await desk.tell(RemoveWorkers((f"worker-{number}",), "unreachable"))
        await desk.join(f"worker-{number}", 1)
        await desk.tell(RemoveWorkers((f"worker-{number}",), "left", announced=True))
    assert desk.given_up() == []


async def test_workers_that_left_after_a_notice_make_nothing_suspect(desk: Desk) -> None:
    await desk.submit(*requests(1))
    for number in range(5):
        worker = await desk.add(f"worker-{number}")
        assert len(worker.all(Grant)) == 1
        await desk.tell(RemoveWorkers((f"worker-{number}",), "left after a notice", announced=True))
    assert desk.given_up() == []
