"""The SP groups of one node: who is told what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from types import SimpleNamespace
from typing import Any

import pytest
from job_kit import Recorder, recorder, settle
from msgspec.structs import replace
from runtime_kit import Cluster

from spotlight.actors.node.regrouping import Grouping
from spotlight.actors.protocol.down import Demand, DemandClass, GroupPlan
from spotlight.actors.protocol.up import WorkerRefs, WorkerReport
from spotlight.actors.runtime import ActorSystem
from spotlight.timings import NodeTimings

pytestmark = pytest.mark.virtual_time

ALONE_AGAIN_S = 31.0
"""Longer than a worker with which no group formed is left alone."""


def report(worker: str, epoch: int, job: str = "job", *, formed: bool = True) -> WorkerReport:
    """Of one that is ready for the job; for none if that is empty."""
    versions = (0,) if job else ()
    return WorkerReport(worker, 1, job_id=job, rollout=versions, group=epoch, formed=formed)


class Plan:
    """The grouping of a node, and the leaders of its workers, which only listen."""

    def __init__(self) -> None:
        self.leaders: dict[str, Recorder] = {}
        self.planned: dict[str, list[GroupPlan]] = {}
        """For each worker, in order."""
        self.alive: dict[str, str] = {}
        self.starts = 0

    async def open(self, cluster: Cluster, *workers: str) -> None:
        self.system: ActorSystem = await cluster.system("n")
        self.node = await recorder(self.system, "node")
        node: Any = SimpleNamespace(run_task=self.node.run_task, group_planned=self._note)
        self.grouping = Grouping(node, "n", NodeTimings())
        for worker in workers:
            await self.add(worker)

    def _note(self, worker: str) -> None:
        plan = self.grouping.plan_of(worker)
        assert plan is not None
        self.planned[worker].append(plan)

    async def add(self, worker: str, job: str = "job") -> None:
        """A worker is up, and ready for the job."""
        self.starts += 1
        leader = await recorder(self.system, f"leader-{worker}-{self.starts}")
        self.leaders[worker] = leader
        self.planned[worker] = []
        refs = WorkerRefs(worker, self.starts, leader.ref, leader.ref, leader.ref)
        self.grouping.add(refs)
        await self.hear(worker, 0, job)

    async def hear(self, worker: str, epoch: int | None = None, job: str = "job") -> None:
        """It answers, and has been told of its latest group unless another epoch is given."""
        orders = self.orders(worker)
        known = epoch if epoch is not None else orders[-1].epoch if orders else 0
        self.grouping.note(report(worker, known, job))
        await settle()

    async def demand(
        self, degree: int | None, apart: tuple[str, ...] = (), job: str = "job", batches: int = 100
    ) -> None:
        """The user wants groups of this degree."""
        steps = {1: 1.0, 2: 0.6, 4: 0.4}
        waiting = DemandClass("rollout", batches, 20, steps)
        self.grouping.set_demand(Demand(job, 4, (waiting,), None, degree, apart))
        await settle()

    async def fail(self, *culprits: str, epoch: int | None = None, wait_s: float = 0.2) -> None:
        """The latest group did not form."""
        epoch = epoch or max(
            order.epoch for worker in self.leaders for order in self.orders(worker)
        )
        self.say_failed(epoch, *culprits)
        await asyncio.sleep(wait_s)

    def say_failed(self, epoch: int, *culprits: str) -> None:
        """One of the group does, or somebody, if there is none of that epoch."""
        last = {worker: plans[-1].epoch for worker, plans in self.planned.items() if plans}
        worker = next((worker for worker, known in last.items() if known == epoch), "a")
        failed = report(worker, epoch, formed=False)
        self.grouping.note(replace(failed, failure="it broke", culprits=culprits))

    def orders(self, worker: str) -> list[GroupPlan]:
        return self.planned[worker]

    def last(self, worker: str) -> GroupPlan:
        return self.orders(worker)[-1]

    def groups(self) -> set[tuple[str, ...]]:
        """As the workers were told last."""
        return {
            tuple(seat.worker for seat in self.last(worker).seats)
            if self.orders(worker)
            else (worker,)
            for worker in self.leaders
        }

    def forget(self) -> None:
        for plans in self.planned.values():
            plans.clear()

    def told(self) -> set[str]:
        """Who was told something since the last `forget`."""
        return {worker for worker in self.leaders if self.orders(worker)}


@pytest.fixture
async def plan() -> AsyncIterator[Plan]:
    async with Cluster() as cluster:
        plan = Plan()
        await plan.open(cluster, "a", "b", "c", "d")
        yield plan


async def test_without_a_demand_nobody_is_told_anything(plan: Plan) -> None:
    assert plan.told() == set()
    assert not plan.grouping.is_grouped("a")


async def test_every_worker_is_told_the_same_of_its_group(plan: Plan) -> None:
    await plan.demand(2)
    assert plan.groups() == {("a", "b"), ("c", "d")}
    assert plan.last("a") == plan.last("b")
    assert plan.last("c") == plan.last("d")
    assert plan.last("a").ring == 1
    assert all(plan.grouping.is_grouped(worker) for worker in "abcd")


async def test_only_those_are_told_whose_group_changes(plan: Plan) -> None:
    await plan.demand(2)
    plan.forget()
    await plan.demand(2)
    assert plan.told() == set()
    plan.grouping.remove("d")
    await settle()
    assert plan.told() == {"c"}


async def test_epochs_only_grow_and_none_is_used_twice(plan: Plan) -> None:
    for degree in (2, 4, 1, 2, 4):
        await plan.demand(degree)
    await plan.fail("a")
    plan.grouping.remove("b")
    await plan.add("b")
    await asyncio.sleep(ALONE_AGAIN_S)
    seen: dict[int, tuple[str, ...]] = {}
    for worker in plan.leaders:
        epochs = [order.epoch for order in plan.orders(worker)]
        assert epochs == sorted(set(epochs))
        for order in plan.orders(worker):
            workers = tuple(seat.worker for seat in order.seats)
            assert seen.setdefault(order.epoch, workers) == workers


# --- losses ---


async def test_only_those_who_lost_a_member_do_not_wait_for_a_step(plan: Plan) -> None:
    await plan.demand(2)
    for worker in "abcd":
        await plan.hear(worker)
    plan.forget()
    plan.grouping.remove("b")
    await settle()
    assert plan.told() == {"a"}
    assert plan.last("a").at_once
    del plan.leaders["b"]
    await plan.hear("a")
    plan.forget()
    await plan.add("b")
    assert plan.told() == {"a", "b"}
    assert not plan.last("a").at_once
    assert not plan.last("b").at_once


@pytest.mark.parametrize("has_left", [True, False])
async def test_who_may_still_be_in_a_step_with_one_that_is_lost_does_not_end_it(
    plan: Plan, has_left: bool
) -> None:
    await plan.demand(2)
    for worker in "abcd":
        await plan.hear(worker)
    await plan.demand(1)
    epoch = plan.last("a").epoch
    plan.grouping.note(report("a", epoch, formed=has_left))
    plan.forget()
    plan.grouping.remove("b")
    await settle()
    assert plan.told() == (set() if has_left else {"a"})
    assert has_left or (plan.last("a").at_once and plan.last("a").epoch > epoch)


async def test_a_worker_that_falls_silent_leaves_and_one_that_answers_again_comes_back(
    plan: Plan,
) -> None:
    await plan.demand(4)
    plan.forget()
    plan.grouping.lose_sight("a")
    await settle()
    assert plan.groups() == {("a",), ("b", "c"), ("d",)}
    assert all(plan.last(worker).at_once for worker in "abcd")
    for worker in "bcd":
        await plan.hear(worker)
    plan.forget()
    await plan.hear("a")
    assert len(plan.groups()) == 1
    assert not any(plan.last(worker).at_once for worker in "bcd")


async def test_a_worker_that_ended_is_planned_with_no_more(plan: Plan) -> None:
    await plan.demand(4)
    plan.grouping.remove("a")
    plan.grouping.remove("a")
    plan.grouping.lose_sight("a")
    del plan.leaders["a"]
    await settle()
    await plan.demand(4)
    assert plan.groups() == {("b", "c"), ("d",)}


async def test_what_is_said_of_workers_that_are_gone_changes_nothing(plan: Plan) -> None:
    await plan.demand(4)
    plan.grouping.remove("a")
    await settle()
    plan.forget()
    await plan.hear("a", 1)
    assert plan.told() == set()


async def test_the_next_order_after_a_lost_one_still_says_that_a_member_is_gone(
    plan: Plan,
) -> None:
    await plan.demand(2)
    for worker in "abcd":
        await plan.hear(worker)
    known = plan.last("a").epoch
    plan.grouping.remove("b")  # which a is not told
    del plan.leaders["b"]
    await plan.hear("a", known)
    await plan.demand(4)  # c and d stay together, a is with nobody still
    await plan.add("b")
    assert plan.last("a").at_once
    await plan.hear("a")
    plan.grouping.end_job()
    await settle()
    assert not plan.last("a").at_once


# --- failures ---


async def test_a_group_that_broke_for_no_known_reason_is_formed_again(plan: Plan) -> None:
    await plan.demand(4)
    before = plan.last("a")
    await plan.fail()
    after = plan.last("a")
    assert after.epoch > before.epoch
    assert after.seats == before.seats
    assert all(plan.last(worker).at_once for worker in "abcd")


async def test_a_failure_that_all_report_is_planned_for_once(plan: Plan) -> None:
    await plan.demand(4)
    epoch = plan.last("a").epoch
    for _ in range(4):
        plan.say_failed(epoch)
    await asyncio.sleep(1.0)
    assert [len(plan.orders(worker)) for worker in "abcd"] == [2, 2, 2, 2]


async def test_a_failure_of_an_old_epoch_changes_nothing_and_is_logged(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    await plan.demand(4)
    old = plan.last("a").epoch
    await plan.demand(2)
    plan.forget()
    await plan.fail(epoch=old)
    await plan.fail("a", epoch=old)
    await plan.fail(epoch=99)
    assert plan.told() == set()
    assert capsys.readouterr().out.count("old_epoch_refused") == 2, "once each"


async def test_an_ended_process_is_waited_for_before_a_broken_group_is_formed_again(
    plan: Plan,
) -> None:
    await plan.demand(4)
    epoch = plan.last("a").epoch
    plan.say_failed(epoch)
    await asyncio.sleep(0.05)
    plan.grouping.remove("d")
    del plan.leaders["d"]
    await asyncio.sleep(1.0)
    assert plan.groups() == {("a", "b"), ("c",)}
    assert [len(plan.orders(worker)) for worker in "abc"] == [2, 2, 2]


async def test_those_at_fault_are_alone_for_a_while_and_then_tried_again(plan: Plan) -> None:
    await plan.demand(2)
    epoch = plan.last("b").epoch
    await plan.fail("b", epoch=epoch)
    assert plan.groups() == {("a",), ("b",), ("c", "d")}
    await plan.demand(2)
    assert plan.groups() == {("a",), ("b",), ("c", "d")}
    await asyncio.sleep(ALONE_AGAIN_S)
    assert plan.groups() == {("a", "b"), ("c", "d")}


async def test_workers_of_which_no_group_forms_are_left_alone_and_tried_again(
    plan: Plan,
) -> None:
    for worker in "cd":
        plan.grouping.remove(worker)
        del plan.leaders[worker]
    await plan.demand(2)
    for _ in range(2):
        await plan.fail()
        assert plan.groups() == {("a", "b")}
    await plan.fail()
    assert plan.groups() == {("a",), ("b",)}
    await asyncio.sleep(ALONE_AGAIN_S)
    assert plan.groups() == {("a", "b")}


async def test_a_group_that_takes_long_to_fail_is_given_up_too(plan: Plan) -> None:
    """Connecting may take a minute to fail."""
    for worker in "cd":
        plan.grouping.remove(worker)
        del plan.leaders[worker]
    await plan.demand(2)
    for _ in range(3):
        assert plan.groups() == {("a", "b")}
        await plan.fail(wait_s=80.0 - 0.1 if _ < 2 else 0.2)
    assert plan.groups() == {("a",), ("b",)}


async def test_failures_long_ago_do_not_count(plan: Plan) -> None:
    await plan.demand(4)
    for _ in range(6):
        await plan.fail()
        await asyncio.sleep(200.0)
    assert len(plan.groups()) == 1
    assert len(plan.grouping._failures) == 1


async def test_a_worker_that_starts_again_does_not_pay_for_what_the_last_one_did(
    plan: Plan,
) -> None:
    await plan.demand(2)
    await plan.fail("b", epoch=plan.last("b").epoch)
    assert ("b",) in plan.groups()
    plan.grouping.remove("b")
    await plan.add("b")
    assert plan.groups() == {("a", "b"), ("c", "d")}


async def test_a_worker_that_may_still_be_in_a_step_with_others_counts_as_grouped(
    plan: Plan,
) -> None:
    await plan.demand(2)
    await plan.hear("a")
    await plan.demand(1)
    assert plan.grouping.is_grouped("a")
    await plan.hear("a")
    assert not plan.grouping.is_grouped("a")


# --- who may share ---


async def test_workers_that_train_stay_alone(plan: Plan) -> None:
    await plan.demand(4, apart=("a",))
    assert ("a",) in plan.groups()
    assert sorted(map(len, plan.groups())) == [1, 1, 2]


async def test_workers_that_are_not_ready_for_the_job_stay_alone(plan: Plan) -> None:
    await plan.hear("a", job="")
    await plan.hear("b", job="another")
    await plan.demand(4)
    assert plan.groups() == {("a",), ("b",), ("c", "d")}
    await plan.hear("a")
    await plan.hear("b")
    assert len(plan.groups()) == 1


async def test_a_worker_that_starts_again_is_alone_until_it_is_ready(plan: Plan) -> None:
    await plan.demand(4)
    plan.grouping.remove("a")
    await plan.add("a", job="")
    assert not plan.grouping.is_grouped("a")
    await plan.hear("a")
    assert plan.grouping.is_grouped("a")


async def test_at_the_end_of_the_job_all_are_alone(plan: Plan) -> None:
    await plan.demand(4)
    plan.grouping.end_job()
    await settle()
    assert plan.groups() == {("a",), ("b",), ("c",), ("d",)}
    for worker in "abcd":
        await plan.hear(worker)
    assert not any(plan.grouping.is_grouped(worker) for worker in "abcd")


@pytest.mark.parametrize("gone", [(), ("c",)])
async def test_everyone_is_in_exactly_one_group(plan: Plan, gone: Collection[str]) -> None:
    for worker in gone:
        plan.grouping.remove(worker)
        del plan.leaders[worker]
    for degree in (2, 4, None, 1):
        await plan.demand(degree, batches=2)
        members = [worker for group in plan.grouping._groups for worker in group]
        assert sorted(members) == sorted(plan.leaders)
