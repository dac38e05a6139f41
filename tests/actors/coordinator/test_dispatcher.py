"""The dispatcher: it hears what the table of requests must know, and carries out what it says.

What the table decides is tested with the table.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from desk_kit import Desk, ids, images, steps, steps_of
from job_kit import SETTINGS, job, offer, recorder, requests, settle

from spotlight.actors.protocol.down import Grant, Recall, Receipt, Revoke
from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.actors.protocol.up import CommitSteps, Completed, LeaseFailed, Pull, ReturnLease
from spotlight.errors import ActorError
from spotlight.policies.requests.instructions import RequestsGivenUp
from spotlight.record.run_events import ResultsIgnored, WorkerLost, WorkTakenBack
from spotlight.types import Slice, UpdateSlices

pytestmark = pytest.mark.virtual_time

LAST = SETTINGS.steps


async def test_a_request_is_denoised_and_scored_then_finished(desk: Desk) -> None:
    worker = await desk.add("a")
    wanted = requests(2)
    await desk.submit(*wanted)
    grant = worker.last(Grant)
    assert grant.requests == wanted
    assert (await desk.commit("a", grant, LAST, bundle=images("a", grant))).accepted == 2
    receipt = await desk.deliver("a", grant, rewards=(0.25, 1.0))
    assert (receipt.accepted, receipt.ask_again) == (2, False)
    results = desk.finished()[-1].results
    assert [(r.request, r.rewards, r.bundle, r.row) for r in results] == [
        (wanted[0], (0.25,), images("a", grant), 0),
        (wanted[1], (1.0,), images("a", grant), 1),
    ]
    assert desk.gone() == [], "training needs the images"


# --- what is acknowledged ---


async def test_a_commit_is_durable_before_it_is_acknowledged(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    assert (await desk.commit("a", grant, 1)).accepted == 2
    saved = {key: row.commit for key, row in desk.journal.requests().items() if row.commit}
    assert {key: (c.step, c.bundle, c.row) for key, c in saved.items()} == {
        request_id: (1, steps_of("a", grant, 1), row) for row, request_id in enumerate(ids(grant))
    }


async def test_rewards_are_durable_before_they_are_acknowledged(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    await desk.deliver("a", worker.last(Grant), rewards=(0.25, 0.75))
    assert [row.rewards for row in desk.journal.requests().values()] == [(0.25,), (0.75,)]


@pytest.mark.parametrize("what", ["commit", "completion"])
async def test_nothing_is_acknowledged_or_told_that_the_journal_refused(
    desk: Desk, what: str
) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    desk.file.close()
    with pytest.raises(ActorError):
        if what == "commit":
            await desk.commit("a", worker.last(Grant), 1)
        else:
            await desk.deliver("a", worker.last(Grant))
    assert len(desk.failures) == 1
    assert desk.finished() == []


async def test_nothing_is_granted_that_follows_from_what_the_journal_refused(desk: Desk) -> None:
    """A worker has saved steps and gives its lease back, all in one turn."""
    worker = await desk.add("a", credits=1)
    await desk.submit(*requests(1))
    await desk.add("b", credits=1)
    grant, now = worker.last(Grant), asyncio.get_running_loop().time()
    saved = CommitSteps("a", 1, grant.lease, tuple(ids(grant)), 1, steps_of("a", grant, 1, 1), 0.1)
    desk.file.close()
    desk.queue.carry_out(desk.table.commit("a", 1, saved, now))
    desk.queue.carry_out(desk.table.give_back("a", 1, grant.lease, now))
    await settle()
    assert len(desk.failures) == 1
    assert desk.grants() == [grant]


@pytest.mark.parametrize(
    "key", ["samples/b/1-{}", "samples/a/2-{}", "samples/a/1-{}0", "weights/a/1-{}", "commits/a"]
)
async def test_a_bundle_that_is_not_the_worker_s_own_is_neither_taken_nor_deleted(
    desk: Desk, key: str
) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    grant = worker.last(Grant)
    foreign = offer(key.format(grant.lease))
    assert (await desk.commit("a", grant, 1, bundle=foreign)).accepted == 0
    assert (await desk.deliver("a", grant, bundle=foreign)).accepted == 0
    assert desk.gone() == desk.finished() == []
    assert await desk.complete("a", grant.lease) == 1


async def test_what_is_kept_by_a_node_that_keeps_nothing_for_the_job_does_not_count(
    desk: Desk,
) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    grant = worker.last(Grant)
    nowhere = msgspec.structs.replace(images("a", grant), keeper="r")
    assert (await desk.deliver("a", grant, bundle=nowhere)).accepted == 0
    assert desk.finished() == []
    desk.keepers.add("r")
    assert (await desk.deliver("a", grant, bundle=nowhere)).accepted == 1


async def test_before_anything_is_submitted_what_a_node_keeps_is_asked_for_again(
    desk: Desk,
) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    grant = worker.last(Grant)
    await desk.restart()
    await desk.meet("a")
    kept = msgspec.structs.replace(images("a", grant), keeper="r")
    assert (await desk.deliver("a", grant, bundle=kept)).ask_again


# --- gradients ---


async def grant_gradients(desk: Desk, count: int = 1) -> Grant:
    """A worker computes gradients, and is given the first of so many."""
    worker = await desk.add("a")
    await desk.add("b")
    desk.queue.compute(("a",))
    wanted = requests(count, "gradient")
    training, sampler = job().training, job().sampler
    for number, one in enumerate(wanted):
        part = Slice(number, (), (), 0, 0)
        share = UpdateSlices(0, 0, 0, 1, 1.0, (part,))
        desk.slices[one.id] = SliceOrder(training, sampler, 0, False, 0, share, (), offer("w"))
    await desk.submit(*wanted)
    return worker.last(Grant)


async def computed(desk: Desk, grant: Grant, key: str) -> int:
    """How much counts of a gradient under this key."""
    done = Completed("a", 1, grant.lease, tuple(ids(grant)), offer(key), ((),), 0, 2.0)
    receipt = await desk.ask(done)
    assert isinstance(receipt, Receipt)
    return receipt.accepted


async def test_a_gradient_is_granted_with_what_it_is_of_and_told_when_it_is_there(
    desk: Desk,
) -> None:
    grant = await grant_gradients(desk)
    (wanted,) = grant.requests
    assert (wanted.kind, grant.slice) == ("gradient", desk.slices[wanted.id])
    assert await computed(desk, grant, "gradients/a/3") == 1
    ((result,),) = (told.results for told in desk.finished())
    assert (result.request, result.bundle.key) == (wanted, "gradients/a/3")
    assert desk.gone() == []
    assert desk.journal.requests() == {}, "it is computed again after a restart"


async def test_a_gradient_that_nobody_needs_any_more_is_not_granted(desk: Desk) -> None:
    worker = await desk.add("a")
    desk.queue.compute(("a",))
    await desk.submit(*requests(1, "gradient"))
    assert worker.all(Grant) == []


@pytest.mark.parametrize(
    "key",
    [
        "gradients/b/3",
        "gradients/ab/3",
        "gradients/a",
        "samples/a/1-{}",
        "samples/a/1-{}-gradient",
        "commits/a/1-{}",
        "weights/lent-0-0",
    ],
)
async def test_a_gradient_that_is_not_the_worker_s_own_is_not_taken(desk: Desk, key: str) -> None:
    grant = await grant_gradients(desk)
    assert await computed(desk, grant, key.format(grant.lease)) == 0
    assert desk.gone() == desk.finished() == []
    assert await computed(desk, grant, "gradients/a/0") == 1


async def test_a_gradient_is_no_sample(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    grant = worker.last(Grant)
    assert (await desk.deliver("a", grant, bundle=offer("gradients/a/0"))).accepted == 0
    assert desk.gone() == desk.finished() == []


async def test_a_sample_among_gradients_is_not_taken_either(desk: Desk) -> None:
    grant = await grant_gradients(desk)
    mixed = (*ids(grant), requests(1)[0].id)
    done = Completed("a", 1, grant.lease, mixed, offer("gradients/a/0"), ((), (0.5,)), 0, 2.0)
    assert await desk.ask(done) == Receipt(0)
    assert desk.finished() == []


async def test_nothing_is_saved_of_a_gradient_half_way(desk: Desk) -> None:
    grant = await grant_gradients(desk)
    assert (await desk.commit("a", grant, 1)).accepted == 0
    assert desk.journal.requests() == {}


# --- what workers are told ---


async def test_the_lease_of_a_worker_that_is_not_heard_goes_to_another(desk: Desk) -> None:
    first = await desk.add("first", credits=1)
    await desk.submit(*requests(2))
    second = await desk.add("second", credits=1)
    await asyncio.sleep(10.0)
    assert second.all(Grant) == []
    await asyncio.sleep(7.0)
    assert ids(second.last(Grant)) == ids(first.last(Grant))
    assert desk.events_of(WorkTakenBack) == [WorkTakenBack(items=2)]


async def test_the_work_of_a_lost_worker_goes_on_elsewhere_and_is_reported(desk: Desk) -> None:
    lost = await desk.add("lost")
    await desk.submit(*requests(3))
    await desk.commit("lost", lost.last(Grant), 1)
    other = await desk.add("other")
    desk.queue.remove_workers(("lost",), "preempted")
    await settle()
    again = other.last(Grant)
    assert (ids(again), steps(again)) == (ids(lost.last(Grant)), [1] * 3)
    (event,) = desk.events_of(WorkerLost)
    assert (event.worker, event.reason) == ("lost", "preempted")
    assert event.requests_handed_on == {"rollout": 3}


async def test_what_a_leaving_worker_gives_back_goes_on_elsewhere(desk: Desk) -> None:
    leaving = await desk.add("leaving")
    await desk.submit(*requests(1))
    grant = leaving.last(Grant)
    free = await desk.add("free")
    await desk.leave("leaving")
    assert leaving.last(Recall).leases == (grant.lease,)
    await desk.commit("leaving", grant, 1)
    await desk.tell(ReturnLease("leaving", 1, grant.lease))
    assert (ids(free.last(Grant)), steps(free.last(Grant))) == (ids(grant), [1])
    await desk.leave("leaving", cancelled=True)
    await desk.submit(*requests(2))
    assert len(leaving.all(Grant)) == 2


async def test_barred_workers_get_nothing_until_they_are_free(desk: Desk) -> None:
    worker = await desk.add("a")
    desk.queue.bar(("a",))
    await desk.submit(*requests(1))
    assert worker.all(Grant) == []
    desk.queue.bar(())
    await settle()
    assert len(worker.all(Grant)) == 1


async def test_cancelled_previews_are_revoked_and_never_delivered(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1, "preview"))
    grant = worker.last(Grant)
    await desk.commit("a", grant, 1)
    desk.queue.cancel("preview")
    await settle()
    assert worker.last(Revoke).leases == (grant.lease,)
    assert await desk.complete("a", grant.lease) == 0
    assert desk.ended == []
    assert steps_of("a", grant, 1).key in desk.gone()
    assert desk.journal.requests() == {}


async def test_a_batch_that_cannot_be_denoised_is_tried_again_then_given_up(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    for _ in range(3):
        await desk.tell(LeaseFailed("a", 1, worker.last(Grant).lease, "out of memory"))
    assert len(worker.all(Grant)) == 3
    assert desk.ended == [RequestsGivenUp(requests(1), "out of memory")]


async def test_a_grant_that_cannot_be_sent_goes_to_another_worker(desk: Desk) -> None:
    far = await desk.cluster.system("far")
    remote = await recorder(far, "leader")
    desk.workers["far"] = remote
    await desk.join("far", 1)
    far.tell(desk.dispatcher, Pull("far", 1, 1, 2, 4, (0,), (0,)), sender=remote.ref)
    await asyncio.sleep(1.0)
    await far.abort()
    await asyncio.sleep(10.0)
    await desk.submit(*requests(1))
    near = await desk.add("near")
    await asyncio.sleep(20.0)
    assert [ids(grant) for grant in near.all(Grant)] == [[requests(1)[0].id]]


async def test_nobody_speaks_for_a_worker_but_its_leader(desk: Desk) -> None:
    holder = await desk.add("holder")
    await desk.submit(*requests(1))
    thief = await desk.add("thief")
    failed = LeaseFailed("holder", 1, holder.last(Grant).lease, "not true")
    for _ in range(3):
        desk.system.tell(desk.dispatcher, failed, sender=thief.ref)
    await asyncio.sleep(1.0)
    assert len(desk.grants()) == 1
    assert await desk.complete("holder", holder.last(Grant).lease) == 1


async def test_what_is_said_of_workers_that_are_gone_is_counted(desk: Desk) -> None:
    worker = await desk.add("a", epoch=1)
    await desk.submit(*requests(1))
    old = worker.last(Grant)
    await desk.add("a", epoch=2)
    assert await desk.complete("a", old.lease, epoch=1) == 0
    await desk.tell(LeaseFailed("a", 1, old.lease, "too late"))
    assert desk.events_of(ResultsIgnored) == [ResultsIgnored(worker="a", lease=old.lease)] * 2


# --- what waits ---


async def test_a_change_is_told_when_work_comes_ends_or_becomes_scarce(desk: Desk) -> None:
    for name in "abc":
        await desk.add(name, credits=1)
    desk.backlogs.clear()
    await desk.submit(*requests(24))
    for name in "aaaabc":
        await desk.complete(name, desk.workers[name].last(Grant).lease)
    told = [sum(one.batches for one in backlog) for backlog in desk.backlogs]
    assert told == [6, 2, 1, 0], "5, 4 and 3 are enough for three"


async def test_groups_are_told_to_commit_once_a_step_s_time_is_known(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    assert worker.last(Grant).commit_every == 0
    await desk.deliver("a", worker.last(Grant), seconds=4000.0)
    long = msgspec.structs.replace(SETTINGS, steps=50)
    await desk.submit(msgspec.structs.replace(requests(2)[1], settings=long))
    assert 1 <= worker.last(Grant).commit_every < 50
