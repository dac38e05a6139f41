"""A process full of nodes for `benchmarks.control_plane`: they say what real ones say, and hold
what they are granted until they are told to complete it.

Run as `python -m benchmarks.control_plane_farm CONFIG`. A line on its standard input is an order:
"join", "count", "complete N S" (so many workers complete what they hold within so many seconds), or
"end". What it has seen
goes to its standard output as JSON lines.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import sys
import threading
from typing import Any

import msgspec

from spotlight.actors.protocol.delivery import insist, try_tell
from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.door import Pool
from spotlight.actors.protocol.down import (
    Grant,
    Membership,
    NodePlan,
    NodeRefused,
    WeightsOffer,
    WorkerPlan,
)
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.protocol.trainer import GetTrainer, Publish, StartTrainer, TrainerReport
from spotlight.actors.protocol.up import (
    Completed,
    HeldLease,
    NodeReport,
    Pull,
    WorkerRefs,
    WorkerReport,
)
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message, handles
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.actors.worker.group_leader import REPORT_EVERY
from spotlight.errors import ActorError
from spotlight.timings import DeliveryTimings
from spotlight.transport.control import Guests, KeyPair, ZeroMQTransport, key_of
from spotlight.types import BundleOffer, StoreEndpoint, WorkerState

_STORE = StoreEndpoint("127.0.0.1", 1, "token", "farm", "/farm")
BATCH = 1
"""Requests of a lease."""
_ASK_LIMIT_S = 120.0


class Config(msgspec.Struct, frozen=True):
    """What a farm holds."""

    name: str
    """The name by which the coordinator knows its key."""
    coordinator: str
    nodes: tuple[str, ...]
    workers: int
    """Workers of each node."""
    pull_s: float
    """Seconds between two reports of a worker."""
    pool: Pool = "spot"


def keys_of(farm: str) -> KeyPair:
    """Those of the farm of that name."""
    return KeyPair.derived(farm.encode())


def offer(key: str) -> BundleOffer:
    """Of a bundle that nobody fetches."""
    return BundleOffer(key, 1, 1, _STORE)


def _copy(offer: WeightsOffer) -> WeightsOffer:
    """As it lies in the farm's own store."""
    (part,) = offer.rollout
    return WeightsOffer(offer.version, (msgspec.structs.replace(part, store=_STORE),))


class Farm:
    """What all workers of the process have in common."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rng = random.Random(config.nodes[0])
        self.completing = False
        self.reports = 0
        self.held = 0
        self.grant_ms: list[float] = []


class Leader(Actor):
    """Leads an SP group of one: takes a batch, and holds it."""

    def __init__(self, name: str, epoch: int, farm: Farm) -> None:
        self._name, self._epoch, self._farm = name, epoch, farm
        self._membership: Membership | None = None
        self._version: tuple[int, ...] = ()
        self._leases: dict[int, Grant] = {}
        self._completed_at: float | None = None
        """When a batch was completed after which no other has come."""

    async def started(self) -> None:
        """Report regularly, not all at the same moment."""
        self.run_task(self._keep_reporting())

    @handles(WorkerPlan)
    async def on_plan(self, message: WorkerPlan) -> None:
        job = message.job
        if job is None:
            return
        known, self._membership = self._membership, job.membership
        self._version = tuple(offer.version for offer in job.weights)
        if known is None:
            self._tell_runner("idle")
        self._report()

    @handles(Grant)
    async def on_grant(self, message: Grant) -> None:
        if not self._leases:
            self._tell_runner("rollout")
        self._leases[message.lease] = message
        self._farm.held += 1
        if self._completed_at is not None:
            waited = asyncio.get_running_loop().time() - self._completed_at
            self._farm.grant_ms.append(1000 * waited)
            self._completed_at = None
        self._report()

    async def complete(self, within_s: float) -> None:
        """Deliver what is held, at some time soon."""
        await asyncio.sleep(self._farm.rng.uniform(0, within_s))
        for lease, grant in list(self._leases.items()):
            ids = tuple(request.id for request in grant.requests)
            done = Completed(
                self._name,
                self._epoch,
                lease,
                ids,
                offer(f"samples/{self._name}/{self._epoch}-{lease}"),
                ((0.5,),) * len(ids),
                grant.requests[0].settings.steps,
                1.0,
            )
            del self._leases[lease]
            self._farm.held -= 1
            self._completed_at = asyncio.get_running_loop().time()
            await insist(
                self, self._dispatcher, done, wanted=lambda: True, timings=DeliveryTimings()
            )
            self._report()

    def _dispatcher(self) -> ActorRef:
        assert self._membership is not None
        return self._membership.dispatcher

    def _report(self) -> None:
        if self._membership is None or not self._version:
            return
        self._farm.reports += 1
        held = tuple(
            HeldLease(lease, tuple(request.id for request in grant.requests))
            for lease, grant in self._leases.items()
        )
        pull = Pull(self._name, self._epoch, 1, 1, BATCH, self._version, (), (), held)
        try_tell(self, self._dispatcher(), pull)

    def _tell_runner(self, state: WorkerState) -> None:
        if self._membership is not None:
            report = WorkerReport(
                self._name,
                self._epoch,
                plan=1,
                job_id="job",
                rollout=self._version,
                state=state,
                detail="4 images of iteration 0",
            )
            try_tell(self, self._membership.runner, report)

    async def _keep_reporting(self) -> None:
        period = self._farm.config.pull_s
        await asyncio.sleep(self._farm.rng.uniform(0, period))
        for times in itertools.count(1):
            self._report()
            if times % REPORT_EVERY == 0:
                self._tell_runner("rollout" if self._leases else "idle")
            await asyncio.sleep(period)


class Node(Actor):
    """A node and, where it trains, its trainer rank, which trains without end."""

    def __init__(self, name: str, farm: Farm) -> None:
        self._name, self._farm = name, farm
        self.leaders: list[Leader] = []
        self._refs: tuple[WorkerRefs, ...] = ()
        self._number = 0
        self._term = 0
        """The term for which the trainer rank was built."""
        self._plan: NodePlan | None = None

    async def started(self) -> None:
        """Start the workers."""
        for index in range(self._farm.config.workers):
            name, epoch = f"{self._name}/{index}", self._farm.rng.getrandbits(40)
            leader = Leader(name, epoch, self._farm)
            self.leaders.append(leader)
            ref = await self.spawn(lambda leader=leader: leader, f"leader-{index}")  # type: ignore[misc]
            trainer = self.ref if self._farm.config.pool == "reserved" else ref
            self._refs += (WorkerRefs(name, epoch, ref, ref, trainer),)

    async def join(self) -> None:
        """Return when the coordinator has said yes; report regularly from then on."""
        while self._plan is None:
            await self._report()
        self.watch(self._plan.coordinator)
        self.run_task(self._keep_reporting())

    async def _keep_reporting(self) -> None:
        period = self._farm.config.pull_s
        await asyncio.sleep(self._farm.rng.uniform(0, period))
        while True:
            await self._report()
            await asyncio.sleep(period)

    async def _report(self) -> None:
        config, plan = self._farm.config, self._plan
        coordinator: ActorRef = self.system.well_known(config.coordinator, "coordinator")
        pool: Any = config.pool
        job = plan.job if plan is not None else None
        self._number += 1
        report = NodeReport(
            self._number,
            self._name,
            pool,
            self.ref,
            self._refs,
            _STORE,
            coordinator=plan.coordinator if plan is not None else None,
            plan=plan.number if plan is not None else 0,
            job_id=job.job_id if job is not None else "",
            weights=tuple(_copy(offer) for offer in job.weights) if job is not None else (),
        )
        try:
            answer = await self.ask(coordinator, report, timeout_s=_ASK_LIMIT_S)
        except ActorError:  # it has much to do: the next report says the same
            await asyncio.sleep(self._farm.rng.uniform(0.0, 1.0))
            return
        assert not isinstance(answer, NodeRefused), answer
        if isinstance(answer, NodePlan):
            self._follow(answer)

    @handles(NodePlan)
    async def on_plan(self, message: NodePlan) -> None:
        self._follow(message)
        self.run_task(self._report())

    def _follow(self, plan: NodePlan) -> None:
        if self._plan is None or plan.number > self._plan.number:
            self._plan = plan
            for refs in self._refs:
                self.tell(refs.leader, WorkerPlan(plan.number, plan.job))

    @handles(GetTrainer)
    async def on_get(self, message: GetTrainer) -> TrainerReport:
        return TrainerReport()

    @handles(StartTrainer)
    async def on_start(self, message: StartTrainer) -> None:
        assert self.sender is not None
        self._term = message.term
        report = TrainerReport(message.term, message.rank, message.completed)
        self.tell(self.sender, report)

    @handles(Publish)
    async def on_publish(self, message: Publish) -> None:
        assert self.sender is not None
        weights = offer(f"weights/{message.version:06d}-rollout")
        evaluation = offer(f"weights/{message.version:06d}-evaluation")
        published = WeightsOffer(
            message.version, (weights,), (evaluation,) if message.evaluation else ()
        )
        self.tell(self.sender, TrainerReport(self._term, rank=0, published=published))

    @handles(Message)
    async def on_other(self, message: Message) -> Message | None:
        return None


async def _serve(config: Config) -> None:
    farm = Farm(config)
    guests = Guests({key_of(config.coordinator): "coordinator"})
    transport = ZeroMQTransport(keys=keys_of(config.name), guests=guests, dialect=own_dialect())
    system = ActorSystem(transport, rng=random.Random(config.nodes[0]), rights=MAY_SAY)
    await system.start()
    orders: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(orders.put_nowait, line.strip())
        loop.call_soon_threadsafe(orders.put_nowait, "end")

    threading.Thread(target=listen, daemon=True).start()
    try:
        nodes = [Node(name, farm) for name in config.nodes]
        for node in nodes:
            await system.spawn(lambda node=node: node, f"node-{config.nodes[nodes.index(node)]}")  # type: ignore[misc]
        _say(ready=True)
        while (order := await orders.get()) != "end":
            if order == "join":
                began = loop.time()
                await asyncio.gather(*(node.join() for node in nodes))
                _say(joined_s=loop.time() - began)
            elif order.startswith("complete"):
                leaders = [leader for node in nodes for leader in node.leaders]
                count, within_s = int(order.split()[1]), float(order.split()[2])
                leaders = farm.rng.sample(leaders, min(count, len(leaders)))
                await asyncio.gather(*(leader.complete(within_s) for leader in leaders))
                _say(grant_ms=farm.grant_ms)
            else:
                _say(reports=farm.reports, held=farm.held)
    finally:
        await system.aclose()


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    log_as_json_lines(logging.ERROR)  # to the standard error: the standard output is the driver's
    run(_serve(msgspec.json.decode(sys.argv[1].encode(), type=Config)))
