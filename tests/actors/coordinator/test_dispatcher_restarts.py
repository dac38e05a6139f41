"""A dispatcher that comes back on the journal of the one before."""

from __future__ import annotations

import asyncio

import pytest
from desk_kit import Desk, ids, images, steps, steps_of
from job_kit import requests

from spotlight.actors.protocol import (
    DenoiseFailed,
    ForgetRequests,
    Grant,
    RequestsFinished,
    RequestsGivenUp,
    Revoke,
    ScoreGrant,
)

pytestmark = pytest.mark.virtual_time


async def test_finished_requests_are_answered_at_once_after_a_restart(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.complete("a", grant.lease)
    await desk.score("a", worker.last(ScoreGrant).lease, 0.25, 0.75)
    await desk.restart()
    await desk.submit(*requests(3))
    assert desk.rewards() == {"rollout/0/0/0": 0.25, "rollout/0/0/1": 0.75}
    (results,) = [message.results for message in desk.submitter.all(RequestsFinished)]
    assert [(r.bundle.key, r.row) for r in results] == [
        (images("a", grant).key, 0),
        (images("a", grant).key, 1),
    ]
    assert desk.statistics.open["rollout"] == 1
    again = await desk.add("b")
    assert ids(again.last(Grant)) == ["rollout/0/0/2"]


async def test_denoised_requests_are_scored_without_denoising_after_a_restart(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.complete("a", grant.lease)
    await desk.restart()
    await desk.submit(*requests(2))
    other = await desk.add("b")
    assert other.all(Grant) == []
    assert other.last(ScoreGrant).bundle == images("a", grant)
    await desk.score("b", other.last(ScoreGrant).lease, 0.25, 0.75)
    assert desk.rewards() == {"rollout/0/0/0": 0.25, "rollout/0/0/1": 0.75}
    assert desk.gone() == []


async def test_half_of_a_denoised_batch_may_be_submitted_later_than_the_other(desk: Desk) -> None:
    worker = await desk.add("a")
    wanted = requests(4, "preview")
    await desk.submit(*wanted)
    grant = worker.last(Grant)
    await desk.complete("a", grant.lease)
    await desk.restart()
    other = await desk.add("b")
    await desk.submit(wanted[1], wanted[2])
    assert other.last(ScoreGrant).rows == (1, 2)
    await desk.score("b", other.last(ScoreGrant).lease, 0.1, 0.2)
    assert desk.gone() == [], "the others are still in it"
    await desk.submit(*wanted)
    assert other.last(ScoreGrant).rows == (0, 3)
    await desk.score("b", other.last(ScoreGrant).lease, 0.0, 0.3)
    assert desk.rewards() == {request.id: row / 10 for row, request in enumerate(wanted)}
    assert set(desk.gone()) == {images("a", grant).key}


async def test_commits_go_on_after_a_restart(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.commit("a", grant, 1)
    await desk.restart()
    await desk.submit(*requests(2))
    other = await desk.add("b")
    assert (ids(other.last(Grant)), steps(other.last(Grant))) == (ids(grant), [1, 1])
    assert await desk.complete("b", other.last(Grant).lease) == 2
    assert desk.gone() == [steps_of("a", grant, 1).key]


@pytest.mark.parametrize("heard_first", [True, False])
async def test_a_running_lease_is_adopted_after_a_restart(desk: Desk, heard_first: bool) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.restart()
    await desk.meet("a")
    if heard_first:
        await desk.pull("a", holds=(grant,))
        await desk.submit(*requests(2))
    else:
        await desk.submit(*requests(2))
        await desk.pull("a", holds=(grant,))
    assert worker.all(Revoke) == []
    other = await desk.add("b")
    assert other.all(Grant) == []
    assert (await desk.commit("a", grant, 1)).accepted == 2
    assert await desk.complete("a", grant.lease) == 2
    assert len(worker.all(Grant)) == 1


async def test_who_is_heard_first_does_not_get_what_others_work_on(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.restart(listening=True)
    await desk.submit(*requests(3))
    other = await desk.add("b")
    await asyncio.sleep(1.5)
    await desk.meet("a")
    await desk.pull("a", holds=(grant,))
    await asyncio.sleep(3.0)
    assert worker.all(Revoke) == []
    assert [ids(grant) for grant in other.all(Grant)] == [["rollout/0/0/2"]]


async def test_an_adopted_lease_expires_like_any_other(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    await desk.restart()
    await desk.meet("a")
    await desk.pull("a", holds=(worker.last(Grant),))
    await desk.submit(*requests(2))
    await asyncio.sleep(10.0)
    other = await desk.add("b")
    await asyncio.sleep(10.0)
    assert ids(other.last(Grant)) == [r.id for r in requests(2)]


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
    assert set(desk.journal.denoised()) == set(ids(grant))


async def test_a_lease_on_what_is_not_wanted_any_more_is_revoked_after_a_restart(
    desk: Desk,
) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.restart()
    await desk.submit(*requests(1, iteration=1))
    await desk.meet("a")
    await desk.pull("a", holds=(grant,), rollout=())
    assert [revoke.leases for revoke in worker.all(Revoke)] == [(grant.lease,)]
    receipt = await desk.deliver("a", grant)
    assert (receipt.accepted, receipt.ask_again) == (0, False)
    assert desk.gone() == [images("a", grant).key]


async def test_previews_whose_seeds_are_chosen_are_not_waited_for(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2, "preview", iteration=1))
    grant = worker.last(Grant)
    await desk.restart()
    await desk.submit(*requests(1, iteration=1, version=1))
    await desk.meet("a")
    await desk.pull("a", holds=(grant,))
    assert [revoke.leases for revoke in worker.all(Revoke)] == [(grant.lease,)]


async def test_previews_that_are_submitted_bit_by_bit_are_waited_for(desk: Desk) -> None:
    worker = await desk.add("a", batch=2, credits=2)
    previews = requests(8, "preview", iteration=1)
    await desk.submit(*previews)
    first, second = worker.all(Grant)[:2]
    await desk.restart()
    await desk.meet("a")
    await desk.pull("a", holds=(second,))
    await desk.submit(*previews[:2])
    assert worker.all(Revoke) == []
    await desk.submit(*previews[2:])
    assert (await desk.deliver("a", second)).accepted == 2
    assert ids(first) == [request.id for request in previews[:2]]


async def test_a_lease_that_was_revoked_is_not_adopted(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.restart()
    await desk.submit(*requests(1, iteration=1))
    await desk.meet("a")
    await desk.pull("a", holds=(grant,))
    assert [revoke.leases for revoke in worker.all(Revoke)] == [(grant.lease,)]
    await desk.submit(*requests(2))
    other = await desk.add("b")
    assert ids(other.last(Grant)) == ids(grant)


async def test_a_lease_that_another_group_has_by_now_is_revoked(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.restart()
    await desk.submit(*requests(2))
    other = await desk.add("b")
    assert ids(other.last(Grant)) == ids(grant)
    await desk.meet("a")
    await desk.pull("a", holds=(grant,))
    assert [revoke.leases for revoke in worker.all(Revoke)] == [(grant.lease,)]


async def test_given_up_requests_stay_given_up_after_a_restart(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    for _ in range(3):
        await desk.tell(DenoiseFailed("a", 1, worker.last(Grant).lease, "out of memory"))
    await desk.restart()
    await desk.submit(*requests(2))
    assert desk.given_up() == [requests(1)[0].id]
    assert desk.submitter.last(RequestsGivenUp).reason == "out of memory"
    other = await desk.add("b")
    assert ids(other.last(Grant)) == [requests(2)[1].id]
    assert desk.statistics.open["rollout"] == 1


@pytest.mark.parametrize("scored", [True, False])
async def test_a_completion_told_again_after_a_restart_keeps_its_bundle(
    desk: Desk, scored: bool
) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    grant = worker.last(Grant)
    await desk.complete("a", grant.lease)
    if scored:
        await desk.score("a", worker.last(ScoreGrant).lease, 0.5, 0.5)
    await desk.restart()
    await desk.submit(*requests(2))
    await desk.meet("a")
    receipt = await desk.deliver("a", grant)
    assert receipt.accepted > 0
    assert not receipt.ask_again
    assert desk.gone() == []


async def test_what_the_run_went_back_behind_is_forgotten(desk: Desk) -> None:
    """The dispatcher is there before it is settled from which iteration the run goes on."""
    worker = await desk.add("a", rollout=(1,))
    await desk.submit(*requests(2, iteration=1, version=1))
    grant = worker.last(Grant)
    await desk.complete("a", grant.lease)
    await desk.score("a", worker.last(ScoreGrant).lease, 0.5, 0.5)
    await desk.restart()
    desk.journal.rewind(0)
    await desk.submit(*requests(2, iteration=1, version=1))
    assert desk.finished() == []
    assert desk.statistics.open["rollout"] == 2


async def test_nothing_is_left_of_previews_that_are_not_submitted_again(desk: Desk) -> None:
    worker = await desk.add("a", batch=2, credits=1)
    await desk.submit(*requests(6, "preview"))
    done = worker.last(Grant)
    await desk.complete("a", done.lease)
    begun = worker.last(Grant)
    await desk.commit("a", begun, 1)
    await desk.restart()
    await desk.submit(*requests(6, "preview")[4:])
    await desk.tell(ForgetRequests("preview", 0))
    assert sorted(desk.gone()) == sorted([images("a", done).key, steps_of("a", begun, 1).key])
    assert desk.journal.commits() == desk.journal.denoised() == {}
