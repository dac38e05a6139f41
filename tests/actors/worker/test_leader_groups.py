"""The leader of a worker that is in an SP group with others: who pulls, for what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from job_kit import Recorder, recorder
from leader_kit import Crew, committed, report_of, returned
from runtime_kit import Cluster

from spotlight.actors.protocol.down import Grant, GroupPlan, Seat, WorkerPlan
from spotlight.actors.protocol.up import CommitSteps, Pull, ReturnLease, WorkerReport

pytestmark = pytest.mark.virtual_time


class StepGroup(Crew):
    """With another worker's leader, who only records."""

    other: Recorder

    async def open(self, cluster: Cluster) -> None:
        await super().open(cluster)
        self.other = await recorder(await cluster.system("other"), "leader")

    def group(self, epoch: int, *workers: str) -> GroupPlan:
        leaders = {"w": self.leader, "x": self.other.ref}
        seats = (Seat(name, leaders[name], leaders[name]) for name in workers)
        return GroupPlan(epoch, tuple(seats), ring=1, at_once=False)

    async def form(self, epoch: int, *workers: str) -> None:
        """The node plans a group, and it forms."""
        await self.group_stands(self.group(epoch, *workers))

    async def hears(self, epoch: int, *versions: int, worker: str = "x") -> None:
        """What the other's member holds."""
        self.other.tell(self.leader, WorkerReport(worker, 1, group=epoch, rollout=versions))
        await asyncio.sleep(0.01)

    def told_other(self) -> tuple[int, tuple[int, ...]]:
        """What the other's leader heard last of this one: its group, and its versions."""
        report = self.other.last(WorkerReport)
        return report.group, report.rollout

    def pull(self) -> Pull:
        return self.dispatcher.last(Pull)


@pytest.fixture
async def crew() -> AsyncIterator[StepGroup]:
    async with Cluster() as cluster:
        crew = StepGroup()
        await crew.open(cluster)
        yield crew


async def test_it_takes_nothing_before_the_group_has_formed(crew: StepGroup) -> None:
    await crew.prepare()
    assert crew.pull().credits > 0
    await crew.plan(crew.planner.group(crew.group(1, "w")))
    assert crew.member.last(WorkerPlan).group == crew.group(1, "w")
    assert (crew.pull().credits, crew.pull().rollout_versions) == (0, ())
    await crew.group_is(1, formed=True)
    assert (crew.pull().credits, crew.pull().rollout_versions) == (2, (0,))


async def test_it_pulls_for_all_with_what_all_hold(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.hold(1, keep=(0, 1))
    await crew.form(1, "w", "x")
    assert crew.pull().credits == 0
    await crew.hears(1, 1, 2)
    pull = crew.pull()
    assert (pull.credits, pull.members, pull.followers) == (2, 2, ("x",))
    assert pull.rollout_versions == (1,)


async def test_what_a_stranger_or_an_old_group_holds_does_not_count(
    crew: StepGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    await crew.prepare()
    await crew.form(2, "w", "x")
    await crew.hears(1, 0)
    await crew.hears(2, 0, worker="somebody")
    assert crew.pull().credits == 0
    assert capsys.readouterr().out.count("old_epoch_refused") == 2


async def test_one_that_follows_takes_nothing_and_says_what_it_holds(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(1, "x", "w")
    assert (crew.pull().members, crew.pull().credits) == (0, 0)
    assert crew.told_other() == (1, (0,))
    await crew.hold(1, keep=(0, 1))
    assert crew.told_other() == (1, (0, 1))
    assert crew.pull().credits == 0


async def test_what_it_holds_is_said_again_for_it_may_be_lost(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(1, "x", "w")
    crew.other.inbox.clear()
    await asyncio.sleep(5.0)
    assert len(crew.other.all(WorkerReport)) == 1
    assert crew.told_other() == (1, (0,))


async def test_a_grant_for_one_that_follows_goes_back(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(1, "x", "w")
    await crew.grant(4)
    assert crew.dispatcher.all(ReturnLease) == [returned(4)]
    assert crew.member.all(Grant) == []


async def test_what_one_that_follows_still_holds_is_saved_and_goes_back(crew: StepGroup) -> None:
    await crew.working(4)
    await crew.form(1, "x", "w")
    assert crew.held() == (4,)
    await crew.tell(committed(4, 3), sender=crew.member)
    await crew.tell(returned(4), sender=crew.member)
    assert [commit.step for commit in crew.dispatcher.all(CommitSteps)] == [3]
    assert crew.dispatcher.all(ReturnLease) == [returned(4)]
    assert crew.held() == ()


async def test_leases_are_kept_while_it_leads_in_whatever_group(crew: StepGroup) -> None:
    await crew.working(4)
    await crew.form(1, "w", "x")
    await crew.form(2, "w")
    assert crew.held() == (4,)
    assert crew.dispatcher.all(ReturnLease) == []


async def test_an_old_group_changes_nothing(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(5, "w")
    for epoch in (4, 5):
        answer = await crew.plan(crew.planner.group(crew.group(epoch, "x", "w")))
        assert (answer.group, answer.formed) == (5, True)
    assert crew.pull().credits == 2


async def test_a_group_that_failed_takes_nothing_and_its_node_hears_of_it(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(1, "w", "x")
    await crew.hears(1, 0)
    await crew.group_is(1, formed=False, failure="it broke", culprits=("x",))
    report = crew.node.last(WorkerReport)
    assert (report.group, report.failure, report.culprits) == (1, "it broke", ("x",))
    assert crew.pull().credits == 0
    await crew.form(2, "w")
    assert crew.pull().credits == 2


async def test_a_failure_is_said_again_until_there_is_another_group(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(1, "w", "x")
    await crew.group_is(1, formed=False, failure="it broke")
    for _ in range(2):
        assert (await crew.asked()).failure == "it broke"
    await crew.plan(crew.planner.group(crew.group(2, "w")))
    assert (await crew.asked()).failure == ""


async def test_a_failure_of_an_old_group_is_not_passed_on(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(2, "w")
    late = report_of(crew.planner.plan, True, group=(1, False, "late", ()))
    crew.member.tell(crew.leader, late)
    await asyncio.sleep(0.01)
    assert (await crew.asked()).failure == ""


async def test_its_node_hears_what_it_is_ready_for_and_which_group_it_knows(
    crew: StepGroup,
) -> None:
    answer = await crew.asked()
    assert (answer.group, answer.formed, answer.ready_for) == (0, True, "")
    await crew.plan(crew.planner.group(crew.group(3, "w")))
    await crew.prepare(version=None)
    answer = await crew.asked()
    assert (answer.group, answer.formed, answer.ready_for) == (3, False, "")
    await crew.group_is(3, formed=True)
    assert (await crew.asked()).formed
    await crew.drain(20.0)
    assert (await crew.asked()).draining
    await crew.drain(None)
    crew.member.loaded.set()
    await crew.hold(0)
    answer = await crew.asked()
    assert (answer.group, answer.formed, answer.ready_for) == (3, True, "job")
    assert not answer.draining


async def test_one_that_follows_has_drained_when_it_holds_nothing(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(1, "x", "w")
    await crew.drain(30.0)
    assert crew.drained() == [True]
