"""The group leader: it pulls only with acknowledged weights, and delivers what its member says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from job_kit import STORE, job, offer, recorder, requests, settle
from leader_kit import Crew, committed, completed, report_of, returned
from runtime_kit import Cluster

from spotlight.actors.protocol import (
    CommitSteps,
    Completed,
    Grant,
    GroupPlan,
    HeldLease,
    JobPlan,
    LeaseFailed,
    Membership,
    Pull,
    Recall,
    Receipt,
    ReturnLease,
    Revoke,
    Seat,
    WorkerPlan,
    WorkerReport,
)
from spotlight.timings import DeliveryTimings
from spotlight.types import Commit

pytestmark = pytest.mark.virtual_time

NOT_NOW = Receipt(0, ask_again=True)


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    async with Cluster() as cluster:
        crew = Crew()
        await crew.open(cluster)
        yield crew


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
        crew.dispatcher.tell(crew.leader, Grant(number, 15.0, wanted, (None,) * 2, 0))
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
    stranger.tell(crew.leader, Grant(4, 15.0, requests(1), (None,), 0))
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


# --- commits ---


async def test_a_commit_is_made_known_to_the_dispatcher(crew: Crew) -> None:
    await crew.working(4)
    await crew.tell(committed(4, 2))
    assert crew.dispatcher.all(CommitSteps) == [committed(4, 2)]
    await asyncio.sleep(5.0)
    assert crew.held() == (4,)


async def test_only_the_latest_commit_is_sent_again(crew: Crew) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.tell(committed(4, 2))
    await crew.tell(committed(4, 3))
    await crew.tell(committed(4, 5))
    crew.receipt = Receipt(1)
    await asyncio.sleep(10.0)
    assert crew.dispatcher.all(CommitSteps) == [committed(4, 2), committed(4, 5)]


async def test_a_commit_of_what_is_done_is_not_sent_again(crew: Crew) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.tell(committed(4, 2))
    await crew.tell(completed(4))
    crew.receipt = Receipt(1)
    await asyncio.sleep(10.0)
    assert crew.dispatcher.all(CommitSteps) == [committed(4, 2)]
    assert crew.dispatcher.all(Completed) == [completed(4)]


@pytest.mark.parametrize(
    "end",
    [returned(4), LeaseFailed("w", 7, 4, "no scorer", what="scoring")],
    ids=["returned", "not scored"],
)
async def test_what_others_go_on_with_is_given_back_after_its_commit_is_safe(
    crew: Crew, end: ReturnLease | LeaseFailed
) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.tell(committed(4, 2))
    await crew.tell(end)
    assert end not in crew.dispatcher.inbox
    crew.receipt = Receipt(1)
    await asyncio.sleep(2.0)
    told = [m for m in crew.dispatcher.inbox if isinstance(m, CommitSteps | type(end))]
    assert told == [committed(4, 2), committed(4, 2), end]
    assert crew.held() == ()


async def test_a_commit_of_what_failed_to_denoise_is_not_sent_again(crew: Crew) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.tell(committed(4, 2))
    failed = LeaseFailed("w", 7, 4, "out of memory")
    await crew.tell(failed)
    crew.receipt = Receipt(1)
    await asyncio.sleep(10.0)
    assert crew.dispatcher.all(CommitSteps) == [committed(4, 2)]
    assert crew.dispatcher.all(LeaseFailed) == [failed]


async def test_a_recalled_lease_is_returned_once_its_commit_is_safe(crew: Crew) -> None:
    await crew.working(4, 5)
    await crew.tell(Recall((4, 9)))
    assert crew.member.last(Recall).leases in ((4,), (4, 9))
    assert crew.dispatcher.all(ReturnLease) == []
    await crew.tell(committed(4, 2))
    await crew.tell(returned(4))
    assert crew.dispatcher.last(CommitSteps) == committed(4, 2)
    assert crew.dispatcher.all(ReturnLease) == [returned(4)]
    assert crew.held() == (5,)


# --- draining ---


async def test_while_it_drains_it_takes_nothing_and_says_when_nothing_is_left(crew: Crew) -> None:
    await crew.working(4, 5)
    await crew.drain(20.0)
    assert crew.member.last(WorkerPlan).stop_in_s == 20.0
    assert crew.dispatcher.last(Pull).credits == 0
    await crew.grant(6)
    assert crew.dispatcher.last(ReturnLease) == returned(6)
    await crew.tell(returned(5))
    assert crew.drained() == []
    await crew.tell(completed(4))
    assert crew.drained() == [True]
    assert [message.lease for message in crew.member.all(Grant)] == [4, 5]


async def test_it_has_not_drained_before_the_dispatcher_knows(crew: Crew) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.drain(20.0)
    await crew.tell(completed(4))
    assert crew.drained() == []
    crew.receipt = Receipt(1)
    await asyncio.sleep(2.0)
    assert crew.drained() == [True]


async def test_an_idle_one_has_drained_at_once(crew: Crew) -> None:
    await crew.drain(20.0)
    assert crew.drained() == [True]


async def test_when_the_notice_is_withdrawn_it_takes_work_again(crew: Crew) -> None:
    await crew.prepare()
    await crew.drain(20.0)
    await crew.drain(None)
    assert crew.member.last(WorkerPlan).stop_in_s is None
    assert crew.dispatcher.last(Pull).credits > 0
    await crew.grant(4)
    assert crew.held() == (4,), "it says at once what it took"
    assert crew.drained() == [True, False]


async def test_a_job_that_is_prepared_while_it_drains_gets_nothing(crew: Crew) -> None:
    await crew.drain(20.0)
    await crew.prepare()
    assert crew.dispatcher.last(Pull).credits == 0


# --- a coordinator that is away, and comes back ---


async def test_a_result_waits_for_the_coordinator_that_comes_back(crew: Crew) -> None:
    await crew.working(4, 5)
    await crew.coordinator.abort()
    await crew.tell(committed(5, 3))
    await crew.tell(completed(4))
    await asyncio.sleep(30.0)

    await crew.open_coordinator()
    await crew.come_back()
    assert crew.held() == (4, 5), "at once, so that it knows who works on what"
    assert crew.dispatcher.last(Pull).rollout_versions == (), "it may mean other weights by 0"
    await crew.hold(0)
    assert crew.dispatcher.last(Pull).rollout_versions == (0,)
    await asyncio.sleep(10.0)

    assert crew.dispatcher.all(Completed) == [completed(4)]
    assert crew.dispatcher.all(CommitSteps) == [committed(5, 3)]
    assert crew.held() == (5,)
    await crew.grant(6)
    assert crew.member.last(Grant).lease == 6


async def test_what_the_same_runner_says_again_leaves_the_weights(crew: Crew) -> None:
    await crew.prepare()
    elsewhere = msgspec.structs.replace(crew.membership.sink, token="another")
    again = msgspec.structs.replace(crew.membership, sink=elsewhere)
    await crew.plan(crew.planner.prepare(again))
    assert crew.dispatcher.last(Pull).rollout_versions == (0,)


async def test_the_member_hears_of_the_new_sink_and_the_runner_of_the_state(crew: Crew) -> None:
    await crew.working(4)
    await crew.coordinator.abort()
    await asyncio.sleep(5.0)
    await crew.open_coordinator()
    await crew.come_back()
    for told in (crew.member, crew.trainer):
        planned = told.last(WorkerPlan).job
        assert planned is not None
        assert planned.membership == crew.membership
    assert {message.state for message in crew.runner.all(WorkerReport)} == {"idle"}


async def test_a_plan_that_is_repeated_changes_nothing(crew: Crew) -> None:
    await crew.working(4)
    told = len(crew.member.all(WorkerPlan))
    answer = await crew.asked()
    assert (answer.plan, answer.rollout) == (crew.planner.plan.number, (0,))
    assert len(crew.member.all(WorkerPlan)) == len(crew.trainer.all(WorkerPlan)) == told
    assert crew.held() == (4,)


async def test_an_older_plan_changes_nothing(crew: Crew) -> None:
    await crew.prepare()
    before = crew.planner.plan
    await crew.drain(20.0)
    assert (await crew.plan(before)).draining
    assert crew.dispatcher.last(Pull).credits == 0


async def test_a_plan_of_a_job_that_it_does_not_know_waits_for_its_spec(crew: Crew) -> None:
    whole = crew.planner.prepare(crew.membership)
    assert whole.job is not None
    without = msgspec.structs.replace(whole, job=msgspec.structs.replace(whole.job, spec=None))
    assert (await crew.plan(without)).job_id == ""
    assert crew.member.all(WorkerPlan) == []
    assert (await crew.plan(whole)).job_id == "job"
    assert crew.member.all(WorkerPlan) == [whole]


async def test_what_the_member_reported_of_an_older_plan_does_not_count(crew: Crew) -> None:
    """It may be of weights that another runner meant by that version."""
    await crew.prepare()
    late = report_of(crew.planner.plan, loaded=True)
    crew.member.loaded.clear()
    await crew.coordinator.abort()
    await crew.open_coordinator()
    await crew.come_back()
    await crew.tell(late, sender=crew.member)
    assert (await crew.asked()).rollout == ()


async def test_a_result_is_given_up_when_the_coordinator_stays_away(crew: Crew) -> None:
    await crew.working(4)
    await crew.coordinator.abort()
    await crew.tell(completed(4))
    await asyncio.sleep(DeliveryTimings().away_limit_s + 30.0)
    await crew.open_coordinator()
    await crew.come_back()
    await crew.hold(0)
    await asyncio.sleep(10.0)
    assert crew.held() == ()
    assert crew.dispatcher.all(Completed) == []
    await settle()
    assert "leader" in crew.system.cells


async def test_it_answers_its_node_while_the_member_loads(crew: Crew) -> None:
    await crew.prepare(version=None)
    await crew.hold(0)
    assert (await crew.asked()).ready_for == ""


async def test_a_model_that_cannot_be_loaded_is_reported_to_the_runner_and_ends_nothing(
    crew: Crew,
) -> None:
    crew.member.problem = "CheckpointError: model.checkpoint: transformer lacks proj_out.weight"
    await crew.prepare(version=None)
    report = crew.runner.last(WorkerReport)
    assert (report.worker, report.cannot_serve) == ("w", crew.member.problem)
    assert crew.dispatcher.all(Pull) == []
    assert await crew.asked()


async def test_what_it_does_is_said_to_the_runner_again_for_it_may_be_lost(crew: Crew) -> None:
    await crew.prepare()
    with crew.context.busy("rollout", "4 images"):
        await asyncio.sleep(0.01)
        said = [report.state for report in crew.runner.all(WorkerReport)]
        assert said[-1] == "rollout"
        await asyncio.sleep(60.0)
        later = crew.runner.all(WorkerReport)[len(said) :]
        assert 1 < len(later) < 10
        assert {report.state for report in later} == {"rollout"}


async def test_what_only_others_may_say_is_refused_from_strangers(crew: Crew) -> None:
    """Of the node, of the dispatcher, of the member: nothing of it has an effect."""
    await crew.working(1)
    before = len(crew.dispatcher.inbox)
    elsewhere = await crew.cluster.system("stranger")
    stranger = await recorder(elsewhere, "node")
    seats = (Seat("w", 7, crew.leader, crew.member.ref),)
    seat = GroupPlan(5, seats, 1, at_once=True)
    words = [
        WorkerPlan(99, JobPlan("another", Membership(*[stranger.ref] * 2, STORE), spec=job().work)),
        WorkerPlan(99),
        WorkerPlan(99, crew.planner.plan.job, stop_in_s=0.0),
        WorkerPlan(99, crew.planner.plan.job, seat),
        Grant(2, 15.0, requests(1), (None,), 0),
        Revoke((1,)),
        Recall((1,)),
        completed(1),
        LeaseFailed("w", 7, 1, "no"),
    ]
    for word in words:
        stranger.tell(crew.leader, word)
    await asyncio.sleep(0.1)
    stranger.tell(crew.leader, WorkerReport("w", 7, plan=crew.planner.plan.number, rollout=(9,)))
    await asyncio.sleep(0.1)
    assert crew.system.dead_letters.counts["not_allowed"] == len(words)
    assert (await crew.asked()).rollout == (0,)
    assert len(crew.dispatcher.inbox) == before
    await asyncio.sleep(5.0)
    assert crew.dispatcher.last(Pull).leases == (HeldLease(1, ("rollout/0/0/0/0",)),)
