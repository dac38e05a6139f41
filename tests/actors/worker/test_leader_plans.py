"""The leader follows its latest plan, and waits for a coordinator that is away."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from group_leader_kit import *  # noqa: F403  (its fixtures)
from job_kit import STORE, job, recorder, requests, settle
from leader_kit import Crew, committed, completed, report_of

from spotlight.actors.protocol.down import (
    Grant,
    GroupPlan,
    JobPlan,
    Membership,
    Recall,
    Revoke,
    Seat,
    WorkerPlan,
)
from spotlight.actors.protocol.up import (
    CommitSteps,
    Completed,
    HeldLease,
    LeaseFailed,
    Pull,
    WorkerReport,
)
from spotlight.timings import DeliveryTimings

pytestmark = pytest.mark.virtual_time


async def test_a_result_waits_for_the_coordinator_that_comes_back(crew: Crew) -> None:
    await crew.working(4, 5)
    await crew.coordinator.abort()
    await crew.tell(committed(5, 3))
    await crew.tell(completed(4))
    await asyncio.sleep(30.0)

    await crew.open_coordinator()
    await crew.come_back()
    assert crew.held() == (4, 5), "at once, so that it knows who works on what"
    pulled = {pull.rollout_versions for pull in crew.dispatcher.all(Pull)}
    assert pulled == {()}, "it may mean other weights by 0"
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
    seats = (Seat("w", crew.leader, crew.member.ref),)
    seat = GroupPlan(5, seats, 1, at_once=True)
    words = [
        WorkerPlan(99, JobPlan("another", Membership(*[stranger.ref] * 2, STORE), spec=job().work)),
        WorkerPlan(99),
        WorkerPlan(99, crew.planner.plan.job, stop_in_s=0.0),
        WorkerPlan(99, crew.planner.plan.job, seat),
        Grant(2, requests(1), (None,), 0),
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
