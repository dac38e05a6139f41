"""A dispatcher that comes back on the journal of the one before."""

from __future__ import annotations

import asyncio

import pytest
from desk_kit import Desk, ids, images, steps, steps_of
from job_kit import SETTINGS, requests
from msgspec.structs import replace

from spotlight import failpoints
from spotlight.actors.protocol.down import Grant, Revoke
from spotlight.actors.protocol.up import LeaseFailed
from spotlight.errors import ActorDied, RemoteError
from spotlight.policies.requests.instructions import RequestsGivenUp

pytestmark = pytest.mark.virtual_time


async def test_finished_requests_are_answered_at_once_after_a_restart(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.deliver("a", grant, rewards=(0.25, 0.75))
    await desk.restart()
    await desk.submit(*requests(3))
    (told,) = desk.finished()
    assert told.restored
    assert [(r.rewards, r.bundle, r.row) for r in told.results] == [
        ((0.25,), images("a", grant), 0),
        ((0.75,), images("a", grant), 1),
    ]
    again = await desk.add("b")
    assert ids(again.last(Grant)) == [requests(3)[2].id]


@pytest.mark.parametrize("step", [1, SETTINGS.steps])
async def test_commits_go_on_after_a_restart(desk: Desk, step: int) -> None:
    """After the last step only the rewards are missing."""
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.commit("a", grant, step)
    await desk.restart()
    await desk.submit(*requests(2))
    other = await desk.add("b")
    assert (ids(other.last(Grant)), steps(other.last(Grant))) == (ids(grant), [step] * 2)
    assert await desk.complete("b", other.last(Grant).lease) == 2
    assert desk.gone() == [steps_of("a", grant, step).key]


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "lost"])
async def test_what_a_lost_node_kept_is_made_again_after_a_restart(
    desk: Desk, is_there: bool
) -> None:
    desk.keepers.add("r")
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.deliver("a", grant, bundle=replace(images("a", grant), keeper="r"))
    desk.keepers = {"", "r"} if is_there else {""}
    await desk.restart()
    await desk.submit(*requests(2))
    other = await desk.add("b")
    restored = [result for told in desk.finished() for result in told.results]
    assert [result.bundle.keeper for result in restored] == (["r", "r"] if is_there else [])
    if not is_there:
        again = other.last(Grant)
        assert (ids(again), steps(again)) == (ids(grant), [0, 0])
        assert await desk.complete("b", again.lease) == 2


async def test_what_a_lost_node_kept_counts_no_more_when_it_comes_back(desk: Desk) -> None:
    """Other samples may have been trained on meanwhile."""
    desk.keepers.add("r")
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.deliver("a", grant, bundle=replace(images("a", grant), keeper="r"))
    for keepers in ({""}, {"", "r"}):
        desk.keepers = keepers
        await desk.restart()
        await desk.submit(*requests(2, iteration=1, version=1))
    await desk.submit(*requests(2))
    assert not any(told.results for told in desk.finished())


async def test_a_commit_that_a_lost_node_kept_is_not_gone_on_from(desk: Desk) -> None:
    desk.keepers.add("r")
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    grant = worker.last(Grant)
    await desk.commit("a", grant, 1, bundle=replace(steps_of("a", grant, 1), keeper="r"))
    desk.keepers.remove("r")
    await desk.restart()
    await desk.submit(*requests(1))
    other = await desk.add("b")
    assert steps(other.last(Grant)) == [0]


async def test_messages_of_one_turn_share_one_write_and_are_answered_after_it(desk: Desk) -> None:
    workers = {name: await desk.add(name) for name in "abc"}
    await desk.submit(*requests(12))
    grants = {name: worker.last(Grant) for name, worker in workers.items()}
    reached: list[str] = []
    failpoints.install(reached.append)
    try:
        receipts = await asyncio.gather(
            desk.commit("a", grants["a"], 2),
            desk.deliver("b", grants["b"]),
            desk.deliver("c", grants["c"]),
        )
    finally:
        failpoints.install(None)
    assert [receipt.accepted for receipt in receipts] == [len(ids(grants[name])) for name in "abc"]
    assert reached == [
        "journal.before_commit",
        "journal.commit",
        "journal.after_commit",
        *["dispatcher.before_ack"] * 3,
    ]


async def test_nothing_is_answered_or_finished_whose_row_could_not_be_written(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))

    def refuse(name: str) -> None:
        if name == "journal.commit":
            raise OSError(28, "No space left on device")

    failpoints.install(refuse)
    try:
        with pytest.raises(RemoteError, match="No space left"):
            await desk.deliver("a", worker.last(Grant))
    finally:
        failpoints.install(None)
    assert desk.ended == []
    assert len(desk.failures) == 1


async def test_who_waits_for_a_receipt_hears_of_the_end_of_the_dispatcher(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    delivering = asyncio.ensure_future(desk.deliver("a", worker.last(Grant)))
    stopping = asyncio.ensure_future(desk.system.stop(desk.dispatcher))
    with pytest.raises(ActorDied):
        await delivering
    await stopping


async def test_given_up_requests_stay_given_up_after_a_restart(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    for _ in range(3):
        await desk.tell(LeaseFailed("a", 1, worker.last(Grant).lease, "out of memory"))
    await desk.restart()
    await desk.submit(*requests(2))
    assert desk.ended == [RequestsGivenUp(requests(1), "out of memory")]


async def test_a_running_lease_goes_on_after_a_restart(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.restart(listening=True)
    await desk.submit(*requests(2))
    await desk.add("b")
    await asyncio.sleep(1.5)
    await desk.meet("a")
    await desk.pull("a", holds=(grant,))
    await asyncio.sleep(3.0)
    assert worker.all(Revoke) == []
    assert len(desk.grants()) == 1, "who is heard first does not get what others work on"
    assert await desk.complete("a", grant.lease) == 2


async def test_leases_of_different_lives_have_different_numbers(desk: Desk) -> None:
    worker = await desk.add("a", credits=1)
    for life in range(3):
        if life:
            await desk.restart()
            await desk.add("a", credits=1)
        await desk.submit(*requests(8))
    numbers = [grant.lease for grant in worker.all(Grant)]
    assert len(numbers) >= 3
    assert len(set(numbers)) == len(numbers)


async def test_a_completion_that_comes_before_its_requests_is_asked_for_again(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.restart()
    early = await desk.deliver("a", grant)
    assert (early.accepted, early.ask_again) == (0, True), "not even the worker is known"
    await desk.meet("a")
    assert (await desk.deliver("a", grant)).ask_again
    assert desk.gone() == []
    await desk.submit(*requests(2))
    receipt = await desk.deliver("a", grant)
    assert (receipt.accepted, receipt.ask_again) == (2, False)


async def test_what_the_run_went_back_behind_is_forgotten(desk: Desk) -> None:
    """The dispatcher is there before it is settled from which iteration the run goes on."""
    worker = await desk.add("a", rollout=(1,))
    await desk.submit(*requests(2, iteration=1, version=1))
    await desk.complete("a", worker.last(Grant).lease)
    await desk.restart()
    desk.journal.rewind(0)
    await desk.submit(*requests(2, iteration=1, version=1))
    assert desk.finished() == []
    assert desk.table.open("rollout") == 2


async def test_nothing_is_left_of_previews_that_are_not_submitted_again(desk: Desk) -> None:
    worker = await desk.add("a", batch=2, credits=1)
    await desk.submit(*requests(6, "preview"))
    done = worker.last(Grant)
    await desk.complete("a", done.lease)
    begun = worker.last(Grant)
    await desk.commit("a", begun, 1)
    await desk.restart()
    desk.discarded.clear()
    await desk.submit(*requests(6, "preview")[4:])
    desk.queue.forget("preview", 0)
    assert sorted(desk.gone()) == [steps_of("a", begun, 1).key, images("a", done).key]
    assert desk.journal.requests() == {}
