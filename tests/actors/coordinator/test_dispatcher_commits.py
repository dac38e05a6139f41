"""The dispatcher and saved steps: what is acknowledged is durable, goes with the next grant, and
leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from desk_kit import Desk, ids, steps, steps_of
from job_kit import requests

from spotlight.actors.protocol import (
    CancelRequests,
    DenoiseFailed,
    Grant,
    RemoveWorkers,
    ReturnLease,
)
from spotlight.errors import ActorError

pytestmark = pytest.mark.virtual_time


async def test_a_commit_is_durable_before_it_is_acknowledged(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    assert steps(grant) == [0, 0]
    assert (await desk.commit("a", grant, 1)).accepted == 2
    saved = desk.journal.commits()
    assert {key: (c.step, c.bundle.key, c.row) for key, c in saved.items()} == {
        request_id: (1, steps_of("a", grant, 1).key, row)
        for row, request_id in enumerate(ids(grant))
    }
    assert desk.statistics.commits == 1


async def lose_it(desk: Desk, name: str) -> None:
    await desk.tell(RemoveWorkers((name,), "preempted"))


async def let_it_expire(desk: Desk, name: str) -> None:
    await asyncio.sleep(10.0)
    await desk.pull("next")
    await asyncio.sleep(10.0)


async def return_it(desk: Desk, name: str) -> None:
    await desk.leave(name)
    lease = desk.workers[name].last(Grant).lease
    await desk.tell(ReturnLease(name, desk.epochs[name], lease))


async def fail_it(desk: Desk, name: str) -> None:
    lease = desk.workers[name].last(Grant).lease
    await desk.tell(DenoiseFailed(name, desk.epochs[name], lease, "out of memory"))


@pytest.mark.parametrize("end", [lose_it, let_it_expire, return_it, fail_it])
async def test_the_next_group_goes_on_from_the_commit(desk: Desk, end: Any) -> None:
    first = await desk.add("first")
    await desk.submit(*requests(2))
    grant = first.last(Grant)
    await desk.commit("first", grant, 1)
    second = await desk.add("next")
    await end(desk, "first")
    again = second.last(Grant)
    assert (ids(again), steps(again)) == (ids(grant), [1, 1])
    assert [c.bundle.key for c in again.commits if c] == [steps_of("first", grant, 1).key] * 2
    assert desk.statistics.resumed == 2
    assert desk.gone() == [], "the commit is in use"


async def test_a_later_commit_replaces_the_one_before(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.commit("a", grant, 1)
    await desk.commit("a", grant, 2)
    assert {commit.step for commit in desk.journal.commits().values()} == {2}
    assert desk.gone() == [steps_of("a", grant, 1).key]


async def test_an_older_commit_changes_nothing_and_leaves_no_bundle(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.commit("a", grant, 2)
    assert (await desk.commit("a", grant, 1)).accepted == 2
    assert {commit.step for commit in desk.journal.commits().values()} == {2}
    assert desk.gone() == [steps_of("a", grant, 1).key]


async def test_a_commit_that_is_told_twice_keeps_its_bundle(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    for _ in range(2):
        assert (await desk.commit("a", grant, 1)).accepted == 2
    assert desk.gone() == []
    assert desk.statistics.commits == 1


@pytest.mark.parametrize("end", [lose_it, let_it_expire, return_it])
async def test_a_late_commit_changes_nothing_and_leaves_no_bundle(desk: Desk, end: Any) -> None:
    first = await desk.add("first")
    await desk.submit(*requests(2))
    grant = first.last(Grant)
    second = await desk.add("next")
    await end(desk, "first")
    assert (await desk.commit("first", grant, 1)).accepted == 0
    assert desk.journal.commits() == {}
    assert desk.gone() == [steps_of("first", grant, 1).key]
    await asyncio.sleep(1.0)
    assert desk.statistics.late == 1
    assert await desk.complete("next", second.last(Grant).lease) == 2


@pytest.mark.parametrize("end", [lose_it, let_it_expire, return_it])
async def test_a_commit_told_again_after_the_lease_keeps_the_bundle_in_use(
    desk: Desk, end: Any
) -> None:
    first = await desk.add("first")
    await desk.submit(*requests(2))
    grant = first.last(Grant)
    await desk.commit("first", grant, 1)
    second = await desk.add("next")
    await end(desk, "first")
    assert (await desk.commit("first", grant, 1)).accepted == 0, "its receipt was lost"
    assert desk.gone() == []
    assert steps(second.last(Grant)) == [1, 1]


async def test_a_commit_of_an_old_epoch_changes_nothing(desk: Desk) -> None:
    worker = await desk.add("a", epoch=1)
    await desk.submit(*requests(1))
    grant = worker.last(Grant)
    await desk.add("a", epoch=2)
    assert (await desk.commit("a", grant, 1, epoch=1)).accepted == 0
    assert desk.journal.commits() == {}
    assert desk.gone() == [steps_of("a", grant, 1).key]


async def test_commits_go_when_the_images_are_there(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.commit("a", grant, 1)
    assert await desk.complete("a", grant.lease) == 2
    assert desk.journal.commits() == {}
    assert desk.gone() == [steps_of("a", grant, 1).key]


async def test_a_commit_goes_only_when_the_last_of_its_requests_is_done(desk: Desk) -> None:
    first = await desk.add("first")
    await desk.submit(*requests(2))
    grant = first.last(Grant)
    await desk.commit("first", grant, 1)
    second = await desk.add("second", batch=1)
    await desk.tell(RemoveWorkers(("first",), "preempted"))
    await desk.complete("second", second.last(Grant).lease)
    assert desk.gone() == [], "the other request still needs it"
    await desk.complete("second", second.last(Grant).lease)
    assert len(second.all(Grant)) == 2
    assert desk.gone() == [steps_of("first", grant, 1).key]


async def test_commits_of_cancelled_requests_go(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2, "preview"))
    grant = worker.last(Grant)
    await desk.commit("a", grant, 1)
    await desk.tell(CancelRequests("preview"))
    assert desk.gone() == [steps_of("a", grant, 1).key]
    assert desk.journal.commits() == {}


async def test_commits_of_requests_that_are_given_up_go(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    await desk.commit("a", worker.last(Grant), 1)
    for _ in range(3):
        await desk.tell(DenoiseFailed("a", 1, worker.last(Grant).lease, "out of memory"))
    assert desk.given_up() == [requests(1)[0].id]
    assert desk.gone() == [steps_of("a", worker.all(Grant)[0], 1).key]
    assert desk.journal.commits() == {}


async def test_unusable_commits_start_over_and_cost_no_attempt(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    for _ in range(5):
        assert steps(worker.last(Grant)) == [0]
        await desk.commit("a", worker.last(Grant), 1)
        await desk.tell(ReturnLease("a", 1, worker.last(Grant).lease))
        assert steps(worker.last(Grant)) == [1]
        bad = DenoiseFailed("a", 1, worker.last(Grant).lease, "wrong checksum", bad_commits=True)
        await desk.tell(bad)
        assert desk.journal.commits() == {}
    assert desk.given_up() == []
    assert len(desk.gone()) == 5
    assert await desk.complete("a", worker.last(Grant).lease) == 1


async def test_a_request_that_cannot_be_done_is_given_up_without_the_others_of_its_batch(
    desk: Desk,
) -> None:
    worker = await desk.add("a", credits=1)
    wanted = requests(4)
    bad = wanted[1].id
    await desk.submit(*wanted)
    assert ids(worker.last(Grant)) == [request.id for request in wanted]
    for _ in range(5):
        grant = worker.last(Grant)
        if bad in ids(grant):
            await desk.tell(DenoiseFailed("a", 1, grant.lease, "NaN", failed=(bad,)))
        else:
            await desk.complete("a", grant.lease)
        if grant == worker.last(Grant):
            break
    assert desk.given_up() == [bad]
    assert [len(grant.requests) for grant in worker.all(Grant)] in ([4, 1, 1, 3], [4, 3, 1, 1])
    assert desk.statistics.open["rollout"] == 3, "they wait for their rewards"
    assert [event["requests"] for event in desk.event("denoise_failed")] == [[bad]] * 3


async def test_blaming_commits_that_never_came_is_a_failed_attempt(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    for _ in range(3):
        lease = worker.last(Grant).lease
        await desk.tell(DenoiseFailed("a", 1, lease, "wrong checksum", bad_commits=True))
    assert len(worker.all(Grant)) == 3
    assert desk.given_up() == [requests(1)[0].id]


async def test_groups_are_told_to_commit_once_a_step_s_time_is_known(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    assert worker.last(Grant).commit_every == 0
    await desk.deliver("a", worker.last(Grant), seconds=4000.0)
    long = msgspec.structs.replace(requests(1)[0].settings, steps=50)
    wanted = msgspec.structs.replace(requests(2)[1], settings=long)
    await desk.submit(wanted)
    assert worker.last(Grant).requests == (wanted,)
    assert 1 <= worker.last(Grant).commit_every < 50


async def test_nothing_is_acknowledged_that_the_journal_refused(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    desk.file.close()
    with pytest.raises(ActorError):
        await desk.commit("a", worker.last(Grant), 1)
    assert len(desk.failures) == 1
