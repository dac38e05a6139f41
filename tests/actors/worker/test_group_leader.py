"""The group leader pulls only with acknowledged weights, and delivers what its member says."""

from __future__ import annotations

import asyncio

import pytest
from group_leader_kit import *  # noqa: F403  (its fixtures)
from job_kit import job, offer, recorder, requests
from leader_kit import Crew, committed, completed, returned

from spotlight.actors.protocol.down import Grant, Receipt, Revoke, WorkerPlan
from spotlight.actors.protocol.up import (
    CommitSteps,
    Completed,
    HeldLease,
    LeaseFailed,
    Pull,
    ReturnLease,
)
from spotlight.timings import DeliveryTimings
from spotlight.types import Commit

pytestmark = pytest.mark.virtual_time
NOT_NOW = Receipt(0, ask_again=True)


async def test_it_pulls_only_after_the_member_has_acknowledged(crew: Crew) -> None:
    await crew.prepare(version=None)
    await crew.hold(3)
    await asyncio.sleep(30.0)
    assert crew.dispatcher.all(Pull) == []
    crew.member.loaded.set()
    await asyncio.sleep(0.01)
    pull = crew.dispatcher.last(Pull)
    assert (pull.worker, pull.epoch, pull.rollout_versions) == ("w", 7, (3,))
    assert pull.batch == job().sampler.micro_batch


async def test_it_names_exactly_the_versions_that_are_held(crew: Crew) -> None:
    await crew.prepare()
    await crew.hold(1, evaluation=True, keep=(0, 1))
    assert crew.dispatcher.last(Pull).rollout_versions == (0, 1)
    assert crew.dispatcher.last(Pull).evaluation_versions == (1,)
    await crew.hold(2, keep=(1, 2))
    assert crew.dispatcher.last(Pull).rollout_versions == (1, 2)
    await crew.hold(3, keep=(2, 3))
    assert crew.dispatcher.last(Pull).evaluation_versions == ()


async def test_a_new_job_starts_without_weights(crew: Crew) -> None:
    await crew.prepare()
    await crew.prepare(version=5, job_id="next")
    assert crew.dispatcher.last(Pull).rollout_versions == (5,)


async def test_a_grant_goes_to_the_member_and_the_result_to_the_dispatcher(crew: Crew) -> None:
    await crew.prepare()
    commit = Commit(3, offer("commits/1"), 0)
    grant = await crew.grant(4, 2, commit)
    assert crew.member.last(Grant) == grant
    await crew.tell(completed(4, 2))
    assert crew.dispatcher.all(Completed) == [completed(4, 2)]


async def test_a_completion_is_delivered_again_until_it_is_acknowledged(crew: Crew) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.tell(completed(4))
    await asyncio.sleep(2.5)
    crew.receipt = Receipt(1)
    await asyncio.sleep(60.0)
    assert crew.dispatcher.all(Completed) == [completed(4)] * 4


async def test_a_completion_is_sent_again_while_the_coordinator_cannot_tell_yet(
    crew: Crew,
) -> None:
    await crew.working(4)
    crew.receipt = NOT_NOW
    await crew.tell(completed(4))
    await asyncio.sleep(DeliveryTimings().away_limit_s * 2)
    crew.receipt = None  # it was there just now, so it is not given up for an error
    await asyncio.sleep(DeliveryTimings().away_limit_s / 2)
    assert crew.held() == (4,)
    crew.receipt = Receipt(1)
    await asyncio.sleep(2.0)
    assert crew.held() == ()


# --- pulling ---


async def test_leases_are_renewed_by_name_while_they_are_held(crew: Crew) -> None:
    await crew.prepare()
    await crew.grant(4, 2)
    await crew.grant(5)
    pulls = len(crew.dispatcher.all(Pull))
    await asyncio.sleep(13.0)
    assert len(crew.dispatcher.all(Pull)) == pulls + 3
    ids = tuple(each.id for each in requests(2))
    assert crew.dispatcher.last(Pull).leases == (HeldLease(4, ids), HeldLease(5, ids[:1]))
    await crew.tell(completed(4))
    assert crew.held() == (5,)


async def test_a_pull_names_the_prompts_that_were_denoised_last(crew: Crew) -> None:
    await crew.prepare()
    for number in range(80):
        wanted = requests(2, group=number)
        crew.dispatcher.tell(crew.leader, Grant(number, wanted, (None,) * 2, 0))
    await asyncio.sleep(5.0)
    prompts = crew.dispatcher.last(Pull).prompts
    assert prompts == tuple(f'"{number}"' for number in range(16, 80))


async def test_without_weights_there_is_no_pull(crew: Crew) -> None:
    await crew.prepare(version=None)
    await asyncio.sleep(60.0)
    assert crew.dispatcher.all(Pull) == []


async def test_when_nothing_is_held_any_more_the_dispatcher_hears_so(crew: Crew) -> None:
    await crew.prepare()
    await crew.come_back()
    crew.member.report()
    await asyncio.sleep(0.01)
    assert crew.dispatcher.last(Pull).rollout_versions == ()
    assert crew.dispatcher.last(Pull).credits == 0


async def test_a_grant_for_weights_that_were_dropped_since_is_given_back(crew: Crew) -> None:
    await crew.prepare()
    await crew.hold(1, keep=(1,))
    await crew.grant(4)
    assert crew.member.all(Grant) == []
    assert crew.dispatcher.all(ReturnLease) == [returned(4)]


# --- what a lost or repeated message does ---


async def test_a_grant_that_comes_twice_is_taken_once(crew: Crew) -> None:
    await crew.working(4, 4)
    await crew.tell(completed(4))
    await crew.grant(4)
    assert len(crew.member.all(Grant)) == 1
    assert crew.held() == ()


async def test_a_grant_that_its_revocation_overtook_is_not_taken(crew: Crew) -> None:
    await crew.prepare()
    await crew.tell(Revoke((4,)))
    await crew.grant(4)
    assert crew.member.all(Grant) == []
    assert crew.held() == ()


async def test_a_grant_of_a_dispatcher_that_is_not_the_jobs_is_not_taken(crew: Crew) -> None:
    await crew.prepare()
    stranger = await recorder(crew.coordinator, "stranger")
    stranger.tell(crew.leader, Grant(4, requests(1), (None,), 0))
    await asyncio.sleep(1.0)
    assert crew.member.all(Grant) == []


async def test_lease_numbers_of_another_job_mean_nothing(crew: Crew) -> None:
    await crew.working(4)
    await crew.tell(completed(4))
    await crew.prepare(job_id="next")
    await crew.grant(4)
    assert len(crew.member.all(Grant)) == 2


async def test_what_the_member_cannot_do_is_given_back(crew: Crew) -> None:
    await crew.working(4, 5)
    failures = [
        LeaseFailed("w", 7, 4, "out of memory"),
        LeaseFailed("w", 7, 5, "damaged", what="commits"),
        LeaseFailed("w", 7, 6, "NaN", failed=("rollout/0/0/0/1",)),
    ]
    await crew.grant(6)
    for failed in failures:
        await crew.tell(failed)
    assert crew.dispatcher.all(LeaseFailed) == failures
    assert crew.held() == ()


async def test_a_revoked_lease_is_neither_renewed_nor_delivered(crew: Crew) -> None:
    await crew.working(4)
    await crew.tell(Revoke((4,)))
    assert crew.member.last(Revoke) == Revoke((4,))
    await crew.tell(committed(4, 2))
    await crew.tell(completed(4))
    await asyncio.sleep(30.0)
    assert crew.dispatcher.all(Completed) == crew.dispatcher.all(CommitSteps) == []
    assert crew.held() == ()


async def test_after_the_end_of_the_job_nothing_is_delivered(crew: Crew) -> None:
    await crew.working(4)
    await crew.end_job()
    await crew.tell(completed(4))
    await crew.grant(5)
    assert crew.dispatcher.all(Completed) == []
    assert crew.member.last(WorkerPlan).job is None
    assert [message.lease for message in crew.member.all(Grant)] == [4]


async def test_the_end_of_the_job_ends_a_delivery(crew: Crew) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.tell(completed(4))
    await crew.end_job()
    tried = len(crew.dispatcher.all(Completed))
    await asyncio.sleep(60.0)
    assert len(crew.dispatcher.all(Completed)) == tried
