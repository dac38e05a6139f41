"""Nodes whose workers are fakes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fake_workers import FakeWorker
from job_kit import STORE, World

from spotlight.actors.protocol.down import (
    DropBundles,
    NodePlan,
    NodeRefused,
    WeightsOffer,
    WorkerPlan,
)
from spotlight.actors.protocol.up import (
    MissedWeights,
    NodeNotice,
    NodeReport,
    WorkerRefs,
    WorkerReport,
)
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Down, handles
from spotlight.errors import ActorError
from spotlight.record.ledger import WorkerTimes
from spotlight.transport.tensors.shares import Share
from spotlight.types import BundleOffer, StoreEndpoint


class FakeNode(Actor):
    """A node with one worker that is always up; joins the coordinator as it starts, and whenever
    that comes back."""

    def __init__(
        self,
        name: str,
        pool: Any,
        coordinator: ActorRef,
        world: World,
        *,
        patient: bool = False,
        apart: ActorSystem | None = None,
    ) -> None:
        """`apart`: a process for the worker; else it lives in the node's."""
        self.name, self.pool, self.coordinator, self.world = name, pool, coordinator, world
        self.worker: ActorRef
        self.number = 0
        self.refs: tuple[WorkerRefs, ...] = ()
        self.plan = WorkerPlan(0)
        """Of all its workers."""
        self.followed: NodePlan | None = None
        """The latest plan of the coordinator that is there."""
        self.notice: NodeNotice | None = None
        self.left = False
        self._patient = patient
        self._apart = apart
        self.store = STORE
        self._held: set[WeightsOffer] = set()
        self._missed: tuple[MissedWeights, ...] = ()
        self._worked: list[tuple[str, float]] = [("", asyncio.get_running_loop().time())]
        """For which jobs, each since when."""

    async def started(self) -> None:
        name, epoch = f"{self.name}/0", self.system.rng.getrandbits(40)
        spawn = self._apart.spawn if self._apart is not None else self.spawn
        self.worker = await spawn(lambda: FakeWorker(name, epoch, self.world), "worker")
        self.refs = (WorkerRefs(name, epoch, *[self.worker] * 3),)
        # Another process has another one, without what was in the last.
        self.store = msgspec.structs.replace(STORE, machine=self.name, port=epoch % 60_000 + 1)
        await self._begin()

    def aborted(self) -> None:
        """What its store had is gone."""
        self.world.there.discard(self.store.place)

    async def _begin(self) -> None:
        self.world.there.add(self.store.place)
        if self._patient:
            self.run_task(self._keep_reporting())
        else:
            is_known = await self._report()
            self.run_task(self._keep_reporting(is_known=is_known))

    async def _keep_reporting(self, *, is_known: bool = False) -> None:
        while True:
            await asyncio.sleep(4.0 if is_known else 1.0)  # an earlier self is there, perhaps
            is_known = await self._report()

    async def _report(self) -> bool:
        self.number += 1
        followed = self.followed
        report = NodeReport(
            self.number,
            self.name,
            self.pool,
            self.ref,
            self.refs,
            self.store,
            self.notice,
            self.left,
            followed.coordinator if followed is not None else None,
            followed.number if followed is not None else 0,
            self.plan.job.job_id if self.plan.job is not None else "",
            self.plan.job.weights if self.plan.job is not None else (),
            missed=self._missed,
            times=self._times() if self.world.counts_time else (),
            price=self.world.prices.get(self.pool),
            share=self._share(),
        )
        try:
            answer = await self.ask(self.coordinator, report, timeout_s=10.0)
        except ActorError:
            return False
        if isinstance(answer, NodePlan):
            self.watch(answer.coordinator)
            self._follow(answer)
        return not isinstance(answer, NodeRefused)

    def _share(self) -> StoreEndpoint | None:
        if not self.world.nodes_keep_samples:
            return None
        secret = msgspec.structs.replace(self.store, token=f"secret-{self.store.port}")
        self.world.shares[self.name] = Share(secret)
        return secret

    def _times(self) -> tuple[WorkerTimes, ...]:
        """What its worker did is `idle` all the time."""
        now, job_id = asyncio.get_running_loop().time(), ""
        if self.plan.job is not None:
            job_id = self.plan.job.job_id
        if self._worked[-1][0] != job_id:
            self._worked.append((job_id, now))
        ends = [*(since for _, since in self._worked[1:]), now]
        return tuple(
            WorkerTimes(number, job, {f"{self.name}/0": {"idle": round(1000 * (end - since))}})
            for number, ((job, since), end) in enumerate(zip(self._worked, ends, strict=True))
        )

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        self.followed = None
        self.run_task(self._rejoin())

    async def _rejoin(self) -> None:
        """At once, where a report now and then would do."""
        is_known = await self._report()
        for _ in range(30):
            if is_known:
                break
            await asyncio.sleep(1.0)
            is_known = await self._report()

    @handles(NodePlan)
    async def on_plan(self, message: NodePlan) -> None:
        self._follow(message)

    def _follow(self, plan: NodePlan) -> None:
        known = self.followed
        is_same = known is not None and known.coordinator == plan.coordinator
        if known is not None and is_same and plan.number <= known.number:
            return
        told = known.notice.number if known is not None and known.notice is not None else 0
        self.followed, job = plan, plan.job
        if job is not None:
            if job.versions and self.world.versions[-1:] != [job.versions]:
                self.world.versions.append(job.versions)
            weights = tuple(
                self._own(offer)
                for offer in job.weights
                if offer.store.place in self.world.there or self._own(offer) in self._held
            )
            self._held |= set(weights)
            there = {each.version for each in weights}
            self._missed = tuple(
                MissedWeights(each.version, each.store)
                for each in job.weights
                if each.version not in there
            )
            job = msgspec.structs.replace(job, weights=weights)
        elif not plan.over:
            job = self.plan.job
        stop_in_s = self.plan.stop_in_s
        if plan.notice is not None and plan.notice.number > told:
            stop_in_s = None if plan.notice.cancel else plan.notice.notice_s
            self.notice = None if stop_in_s is None else NodeNotice("user", stop_in_s)
            self.left = False
        self.plan = WorkerPlan(self.plan.number + 1, job, None, stop_in_s)
        for refs in self.refs:
            self.tell(refs.leader, self.plan)
        self.run_task(self._report())

    def _own(self, offer: WeightsOffer) -> WeightsOffer:
        """Its store has it at once."""

        def own(bundle: BundleOffer) -> BundleOffer:
            return msgspec.structs.replace(bundle, store=self.store)

        rollout, evaluation = (tuple(map(own, it)) for it in (offer.rollout, offer.evaluation))
        return WeightsOffer(offer.version, rollout, evaluation)

    @handles(DropBundles)
    async def on_drop(self, message: DropBundles) -> None:
        """Its store has none."""

    @handles(WorkerReport)
    async def on_report(self, message: WorkerReport) -> None:
        if message.drained and self.notice is not None:
            self.left = True
            self.run_task(self._report())
