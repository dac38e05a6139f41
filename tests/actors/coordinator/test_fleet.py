"""What nodes are told: when it changes, and whenever their report does not agree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from job_kit import STORE, Recorder, job, offer, recorder, settle
from runtime_kit import Cluster

from spotlight.actors.coordinator.fleet import Fleet, TenantFleet
from spotlight.actors.protocol.down import (
    Demand,
    Membership,
    NodePlan,
    NodeRefused,
    SickWorker,
    WeightsOffer,
)
from spotlight.actors.protocol.up import NodeReport, WorkerRefs
from spotlight.actors.protocol.users import Acknowledged
from spotlight.policies.fleet.fleet_events import Heard, Terms
from spotlight.policies.fleet.table import SENT_AT_ONCE
from spotlight.policies.requests.instructions import EndWorker

pytestmark = pytest.mark.virtual_time

DEMAND = Demand("job", 4, (), None, None, ())


class Site:
    """The plans of a coordinator, and a node that keeps what it is told."""

    node: Recorder
    coordinator: Recorder
    fleet: Fleet
    plans: TenantFleet
    """As the latest tenant asks of it."""

    async def open(self, cluster: Cluster) -> None:
        self.node = await recorder(await cluster.system("n"), "node")
        self.coordinator = await recorder(await cluster.system("coordinator"), "coordinator")
        self.fleet = Fleet(self.coordinator, self)
        self.keys: Any = SimpleNamespace(gone=lambda address: None)
        self.lost: list[tuple[str, bool]] = []
        self.membership = Membership(*[self.coordinator.ref] * 2, STORE)

    def node_reported(self, tenant: str, report: NodeReport) -> None:
        """Whatever runs takes it in."""
        for tenant in self.fleet.table.tenants:
            self.fleet.handle(Heard(tenant, report))

    def node_lost(self, tenant: str, name: str, reason: str, *, announced: bool) -> None:
        self.lost.append((name, announced))

    def reported(self, plan: NodePlan | None = None, **fields: Any) -> NodePlan | Acknowledged:
        """The node reports that it follows a plan, and is answered."""
        workers = fields.pop("workers", ())
        report = NodeReport(1, "n", "spot", self.node.ref, workers, STORE, **fields)
        if plan is not None:
            report = msgspec.structs.replace(report, coordinator=plan.coordinator, plan=plan.number)
        answer = self.fleet.reported(report)
        assert not isinstance(answer, NodeRefused)
        return answer

    def latest(self, **fields: Any) -> NodePlan:
        """What one is told who follows nothing yet."""
        plan = self.reported(**fields)
        assert isinstance(plan, NodePlan)
        return plan

    def prepare(self) -> None:
        self.begin()
        self.plans.prepare("n", job().work, self.membership)

    def begin(self) -> None:
        """A job, which meets the nodes that are there."""
        self.plans = self.fleet.begin("job", Terms())

    async def told(self) -> list[NodePlan]:
        self.fleet.send_plans()
        await settle()
        return self.node.all(NodePlan)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Cluster() as cluster:
        site = Site()
        await site.open(cluster)
        yield site


async def test_a_report_that_agrees_is_acknowledged(site: Site) -> None:
    assert site.reported(site.latest()) == Acknowledged()


async def test_a_report_of_an_older_plan_is_answered_with_the_latest(site: Site) -> None:
    first = site.latest()
    site.prepare()
    (told,) = await site.told()
    assert told.number > first.number
    assert site.reported(first) == told


async def test_a_plan_of_another_coordinator_agrees_with_nothing(site: Site) -> None:
    latest = site.latest()
    elsewhere = msgspec.structs.replace(latest, coordinator=site.node.ref)
    assert site.reported(elsewhere) == latest


async def test_the_spec_is_told_to_those_who_do_not_have_it(site: Site) -> None:
    site.latest()
    site.prepare()
    await site.told()
    without = site.latest(job_id="job")
    assert without.job is not None
    assert without.job.spec is None
    again = site.reported(without, job_id="")
    assert isinstance(again, NodePlan) and again.job is not None
    assert again.job.spec == job().work


async def test_what_changes_together_is_told_once(site: Site) -> None:
    site.latest()
    site.prepare()
    site.plans.keep((3,))
    site.plans.hold("n", WeightsOffer(3, (offer(),)))
    site.plans.demand("n", DEMAND)
    (told,) = await site.told()
    assert told.job is not None
    assert (told.job.weights, told.job.versions) == ((WeightsOffer(3, (offer(),)),), (3,))
    assert (told.demand, told.over) == (DEMAND, False)


async def test_what_does_not_change_is_not_told_again(site: Site) -> None:
    site.latest()
    site.prepare()
    for _ in range(2):
        site.plans.prepare("n", job().work, site.membership)
        site.plans.keep((3,))
        site.plans.demand("n", DEMAND)
        assert len(await site.told()) == 1


async def test_where_to_pull_is_told_anew_though_it_is_the_same_place(site: Site) -> None:
    """The node has failed to, and tries again with the next plan."""
    site.latest()
    site.prepare()
    site.plans.keep((3,))
    numbers = []
    for _ in range(2):
        site.plans.hold("n", WeightsOffer(3, (offer(),)))
        numbers.append((await site.told())[-1].number)
    assert numbers[1] > numbers[0]


async def test_versions_that_are_not_needed_any_more_leave_the_plan(site: Site) -> None:
    site.latest()
    site.prepare()
    site.plans.keep((3, 4))
    for version in (3, 4):
        site.plans.hold("n", WeightsOffer(version, (offer(),)))
    await site.told()
    site.plans.keep((4, 5))
    last = (await site.told())[-1]
    assert last.job is not None
    assert [each.version for each in last.job.weights] == [4]
    assert last.job.versions == (4, 5)


async def test_the_end_of_a_job_is_told_to_all_and_to_who_comes_later(site: Site) -> None:
    site.latest()
    site.prepare()
    site.plans.demand("n", DEMAND)
    site.plans.end()
    last = (await site.told())[-1]
    assert (last.job, last.demand, last.over) == (None, None, True)
    assert site.latest().over


async def test_between_the_start_of_a_job_and_its_first_word_nodes_leave_all_as_it_is(
    site: Site,
) -> None:
    site.begin()
    plan = site.latest()
    assert (plan.job, plan.over) == (None, False)


async def test_a_users_notice_is_told_until_the_node_knows_with_what_is_left_of_it(
    site: Site,
) -> None:
    before = site.latest()
    assert site.fleet.give_notice("n", 30.0, cancel=False)
    await asyncio.sleep(10.0)
    again = site.reported(before)
    assert isinstance(again, NodePlan) and again.notice is not None
    assert again.notice.notice_s == pytest.approx(20.0, abs=0.01)
    assert site.fleet.give_notice("n", 0.0, cancel=True)
    withdrawn = site.latest().notice
    assert withdrawn is not None
    assert withdrawn.cancel
    assert withdrawn.number > again.notice.number


async def test_a_node_that_is_not_there_is_given_no_notice(site: Site) -> None:
    assert not site.fleet.give_notice("n", 30.0, cancel=False)
    site.latest()
    site.fleet.out_of_reach(site.node.ref, "it is gone", site.keys)
    assert not site.fleet.give_notice("n", 30.0, cancel=False)


async def test_another_process_of_that_name_begins_with_nothing(site: Site) -> None:
    site.latest()
    site.prepare()
    site.fleet.give_notice("n", 30.0, cancel=False)
    report = NodeReport(1, "n", "spot", site.coordinator.ref, (), STORE)
    assert isinstance(site.fleet.reported(report), NodeRefused)
    site.fleet.out_of_reach(site.node.ref, "it is gone", site.keys)
    plan = site.fleet.reported(report)
    assert isinstance(plan, NodePlan)
    assert (plan.job, plan.notice) == (None, None)


async def test_trainer_ranks_of_earlier_terms_are_told_that_others_train_instead(
    site: Site,
) -> None:
    site.latest()
    site.prepare()
    site.plans.replace_trainers(3)
    (told,) = await site.told()
    assert told.job is not None
    assert told.job.trainers_term == 3
    site.prepare()  # a runner that comes back may go on with the ranks that are there
    again = (await site.told())[-1].job
    assert again is not None
    assert again.trainers_term == 0


async def test_a_sick_process_is_named_until_it_is_gone(site: Site) -> None:
    sick = WorkerRefs("n/0", 7, *[site.node.ref] * 3)
    site.latest(workers=(sick,))
    site.begin()
    site.plans.end_worker(EndWorker("n", "n/0", 7, "it failed"))
    site.plans.end_worker(EndWorker("elsewhere", "elsewhere/0", 8, "it failed"))
    (told,) = await site.told()
    assert told.sick == (SickWorker("n/0", 7, "it failed"),)
    assert site.latest(workers=(sick,)) == told, "the word may be lost"
    again = msgspec.structs.replace(sick, epoch=9)
    assert site.latest(workers=(again,)).sick == ()


async def test_where_many_plans_change_only_some_are_sent_in_a_turn_of_the_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{number}" for number in range(2 * SENT_AT_ONCE + 1)]
    for name in names:
        site.fleet.reported(NodeReport(1, name, "spot", site.node.ref, (), STORE))
    site.begin()
    for name in names:
        site.plans.prepare(name, job().work, site.membership)
    sent: list[object] = []
    monkeypatch.setattr(site.coordinator, "tell", lambda to, message: sent.append(message))
    site.plans.send()
    assert len(sent) == SENT_AT_ONCE
    site.plans.send()  # more has changed, perhaps
    assert len(sent) == 2 * SENT_AT_ONCE
    await settle()
    assert len(sent) == len(names)
