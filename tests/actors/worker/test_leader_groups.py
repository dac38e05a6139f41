"""The leader of a worker that is in an SP group with others: who pulls, for what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from job_kit import Recorder, recorder
from leader_kit import Crew, committed, returned
from runtime_kit import Cluster

from spotlight.actors.protocol import (
    Alive,
    AreYouThere,
    CommitSteps,
    Drain,
    Drained,
    FormGroup,
    Grant,
    GroupFailed,
    GroupReady,
    HeldVersions,
    Pull,
    ReturnLease,
    Seat,
)

pytestmark = pytest.mark.virtual_time


class StepGroup(Crew):
    """With another worker's leader, who only records."""

    other: Recorder

    async def open(self, cluster: Cluster) -> None:
        await super().open(cluster)
        self.other = await recorder(await cluster.system("other"), "leader")

    def order(self, epoch: int, *workers: str) -> FormGroup:
        leaders = {"w": self.leader, "x": self.other.ref}
        seats = (Seat(name, 1, leaders[name], leaders[name]) for name in workers)
        return FormGroup(epoch, tuple(seats), ring=1, at_once=False)

    async def form(self, epoch: int, *workers: str) -> None:
        """The node plans a group, and it forms."""
        await self.tell(self.order(epoch, *workers), sender=self.node)
        await self.tell(GroupReady(epoch, 0.01), sender=self.member)

    async def hears(self, epoch: int, *versions: int, worker: str = "x") -> None:
        """What the other's member holds."""
        self.other.tell(self.leader, HeldVersions(epoch, worker, versions, ()))
        await asyncio.sleep(0.01)

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
    order = crew.order(1, "w")
    await crew.tell(order, sender=crew.node)
    assert crew.member.all(FormGroup) == [order]
    assert (crew.pull().credits, crew.pull().rollout_versions) == (0, ())
    await crew.tell(GroupReady(1, 0.01), sender=crew.member)
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
    assert crew.other.last(HeldVersions) == HeldVersions(1, "w", (0,), ())
    await crew.hold(1, keep=(0, 1))
    assert crew.other.last(HeldVersions) == HeldVersions(1, "w", (0, 1), ())
    assert crew.pull().credits == 0


async def test_what_it_holds_is_said_again_for_it_may_be_lost(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(1, "x", "w")
    crew.other.inbox.clear()
    await asyncio.sleep(5.0)
    assert crew.other.all(HeldVersions) == [HeldVersions(1, "w", (0,), ())]


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


async def test_an_old_order_changes_nothing_and_is_logged(
    crew: StepGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    await crew.prepare()
    await crew.form(5, "w")
    await crew.tell(crew.order(4, "x", "w"), sender=crew.node)
    await crew.tell(crew.order(5, "x", "w"), sender=crew.node)
    assert len(crew.member.all(FormGroup)) == 1
    assert crew.pull().credits == 2
    assert capsys.readouterr().out.count("old_epoch_refused") == 2


async def test_a_group_that_failed_takes_nothing_and_its_node_hears_of_it(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(1, "w", "x")
    await crew.hears(1, 0)
    failed = GroupFailed(1, "it broke", ("x",))
    await crew.tell(failed, sender=crew.member)
    assert crew.node.all(GroupFailed) == [failed]
    assert crew.pull().credits == 0
    await crew.form(2, "w")
    assert crew.pull().credits == 2


async def test_a_failure_is_said_again_until_there_is_another_order(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(1, "w", "x")
    await crew.tell(GroupFailed(1, "it broke"), sender=crew.member)
    for _ in range(2):
        await crew.system.ask(crew.leader, AreYouThere(), timeout_s=1.0)
    assert len(crew.node.all(GroupFailed)) == 3
    await crew.form(2, "w")
    await crew.system.ask(crew.leader, AreYouThere(), timeout_s=1.0)
    assert len(crew.node.all(GroupFailed)) == 3


async def test_a_failure_of_an_old_group_is_not_passed_on(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(2, "w")
    await crew.tell(GroupFailed(1, "late"), sender=crew.member)
    assert crew.node.all(GroupFailed) == []
    assert crew.pull().credits == 2


async def test_its_node_hears_what_it_is_ready_for_and_of_which_order_it_knows(
    crew: StepGroup,
) -> None:
    assert await crew.system.ask(crew.leader, AreYouThere(), timeout_s=1.0) == Alive("w", 0, "")
    await crew.tell(crew.order(3, "w"), sender=crew.node)
    await crew.prepare(version=None)
    answer = await crew.system.ask(crew.leader, AreYouThere(), timeout_s=1.0)
    assert answer == Alive("w", 3, "", forming=True)
    await crew.tell(GroupReady(3, 0.1), sender=crew.member)
    assert await crew.system.ask(crew.leader, AreYouThere(), timeout_s=1.0) == Alive("w", 3, "")
    await crew.tell(Drain(20.0), sender=crew.node)
    answer = await crew.system.ask(crew.leader, AreYouThere(), timeout_s=1.0)
    assert answer == Alive("w", 3, "", draining=True)
    await crew.tell(Drain(None), sender=crew.node)
    crew.member.loaded.set()
    await crew.hold(0)
    assert await crew.system.ask(crew.leader, AreYouThere(), timeout_s=1.0) == Alive("w", 3, "job")


async def test_one_that_follows_has_drained_when_it_holds_nothing(crew: StepGroup) -> None:
    await crew.prepare()
    await crew.form(1, "x", "w")
    await crew.tell(Drain(30.0), sender=crew.node)
    assert crew.node.all(Drained) == [Drained("w", 7)]
