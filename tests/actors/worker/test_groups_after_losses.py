"""A real node and real workers whose control messages may be lost: the group is whole again in
bounded time, and the work goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from group_kit import (
    Steps,
    Tensors,
    assert_same,
    group_threads,
    quiet_process,
    tiny_models,
    trainable,
    until,
    wanted,
)
from group_kit import alone as made_alone
from job_kit import job, recorder
from node_kit import FakeCoordinator, FakeLauncher, memory_keys
from runtime_kit import Cluster
from scorer_kit import use_scorer

from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol.down import (
    Demand,
    DemandClass,
    Grant,
    JobPlan,
    Membership,
    Receipt,
    WeightsOffer,
)
from spotlight.actors.protocol.up import CommitSteps, Completed, Pull, WorkerRefs, WorkerUp
from spotlight.actors.runtime import ActorRef, Message
from spotlight.actors.worker import torch_engine
from spotlight.actors.worker.group_leader import GroupLeader
from spotlight.actors.worker.member import Member
from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import Denoising
from spotlight.timings import NodeTimings, Timings, WorkerTimings
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors.bundles import pack, unpack
from spotlight_simulation.memory_network import MemoryTransport

KINDS = ("WorkerPlan", "Introduce", "CannotFollow", "Follow", "WorkerReport")
BATCH = wanted(1, 2, 3)


IMPATIENT = Timings(
    worker=WorkerTimings(pull_s=0.2, repeat_s=0.1, introduction_limit_s=1.0),
    node=NodeTimings(ask_alone_s=0.2, ask_grouped_s=0.1),
)
"""Actors repeat themselves sooner than they usually do."""


class Town:
    """A node of two workers in this process, and a coordinator that only records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.losing: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.contexts: list[WorkerContext] = []
        self.leases = 0
        self.leaders: dict[str, ActorRef] = {}

    async def open(self, cluster: Cluster, models: list[DiffusionModel], weights: Tensors) -> None:
        self.store = BundleStore(self.folder / "sink", token="token")
        self.node_store = BundleStore(self.folder / "node", token="token")
        await self.store.start()
        await self.node_store.start()
        self.system, _ = await cluster.process("coordinator")
        self.coordinator = FakeCoordinator()
        await self.system.spawn(lambda: self.coordinator, "coordinator")
        self.dispatcher = await recorder(self.system, "dispatcher", answer=self._answer)
        node_system, transport = await cluster.process("node")
        self._lose_on(transport)
        settings = NodeSettings(
            "n", "spot", len(models), "127.0.0.1", self.system.address, self.folder, 1
        )
        self.launcher = FakeLauncher()
        self.scheduler = NodeScheduler(
            settings, self.node_store, self.launcher, memory_keys, timings=IMPATIENT
        )
        self.node = await node_system.spawn(lambda: self.scheduler, "node")
        for number in range(len(models)):
            await self._add_worker(cluster, f"n/{number}")
        await until(lambda: bool(self.coordinator.reports))
        sink = self.store.writable_by("node")
        membership = Membership(*[self.dispatcher.ref] * 2, sink)
        offer = self.store.put("weights/0", pack(weights))
        plan = JobPlan("job", membership, (WeightsOffer(0, (offer,)),), (0,), spec=job().work)
        self.coordinator.tell(self.node, self.coordinator.change(job=plan))
        await until(lambda: len({pull.worker for pull in self._pulls(1)}) == len(models))

    def _answer(self, message: Message) -> Message | None:
        return Receipt(1) if isinstance(message, Completed | CommitSteps) else None

    async def _add_worker(self, cluster: Cluster, name: str) -> None:
        system, transport = await cluster.process(name.replace("/", "-"))
        self._lose_on(transport)
        context = WorkerContext(name, 1, self.node.address, timings=IMPATIENT)
        self.contexts.append(context)
        engine = TorchEngine()
        shared = SharedModel(context, engine)
        member = await system.spawn(lambda: Member(context, engine, shared), "member")
        other = await recorder(system, "other")
        leader = await system.spawn(lambda: GroupLeader(context, member, other.ref), "leader")
        self.leaders[name] = leader
        refs = WorkerRefs(name, 1, leader, member, other.ref)
        system.tell(self.node, WorkerUp(refs, self.launcher.keys[name].start, "simulated"))

    def _lose_on(self, transport: MemoryTransport) -> None:
        plain = transport.send

        def send(address: str, frame: bytes) -> None:
            kind = next((kind for kind in KINDS if kind.encode() in frame), "")
            if self.losing[kind] > 0:
                self.losing[kind] -= 1
                self.lost[kind] += 1
                return
            plain(address, frame)

        transport.send = send  # type: ignore[method-assign]

    async def close(self) -> None:
        self.scheduler._grouping.end_job()
        await until(lambda: group_threads() == 0)
        for context in self.contexts:
            context.close()
        await self.store.aclose()
        await self.node_store.aclose()

    def _pulls(self, members: int) -> list[Pull]:
        return [
            pull
            for pull in self.dispatcher.all(Pull)
            if pull.members == members and pull.credits > 0 and pull.rollout_versions == (0,)
        ]

    def demand(self) -> None:
        waiting = DemandClass("rollout", 100, 6, {1: 1.0, 2: 0.6})
        demand = Demand("job", 4, (waiting,), None, 2, ())
        self.coordinator.tell(self.node, self.coordinator.change(demand=demand))

    async def leader(self) -> Pull:
        """The next pull of the group."""
        self.dispatcher.inbox.clear()
        await until(lambda: bool(self._pulls(2)), 10.0)
        return self._pulls(2)[-1]

    async def denoise(self, pull: Pull) -> Completed:
        self.leases += 1
        lease = self.leases
        self.dispatcher.tell(
            self.leaders[pull.worker], Grant(lease, BATCH, (None,) * len(BATCH), 0)
        )

        def done() -> list[Completed]:
            return [each for each in self.dispatcher.all(Completed) if each.lease == lease]

        await until(lambda: bool(done()), 10.0)
        return done()[0]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_process():
        yield


@pytest.fixture(scope="module")
def models() -> list[DiffusionModel]:
    return tiny_models(2)


@pytest.fixture(scope="module")
def weights(models: list[DiffusionModel]) -> Tensors:
    return trainable(models[0])


@pytest.fixture(scope="module")
def expected(models: list[DiffusionModel], weights: Tensors) -> Tensors:
    return made_alone(models[0], weights, BATCH)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.fixture
async def town(
    tmp_path: Path,
    models: list[DiffusionModel],
    weights: Tensors,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Town]:
    use_scorer(monkeypatch)
    loaded = iter(models)
    monkeypatch.setattr(torch_engine, "load_model", lambda spec, **_: next(loaded))
    async with Cluster() as cluster:
        town = Town(tmp_path)
        await town.open(cluster, models, weights)
        yield town
        await town.close()


async def test_a_group_denoises_what_it_pulls(town: Town, expected: Tensors) -> None:
    town.demand()
    pull = await town.leader()
    done = await town.denoise(pull)
    assert done.members == 2
    assert_same(unpack(await fetch(done.bundle)), expected)


@pytest.mark.parametrize("kind", ["WorkerPlan", "Introduce", "Follow", "WorkerReport"])
async def test_messages_that_are_lost_only_take_time(
    town: Town, steps: Steps, expected: Tensors, kind: str
) -> None:
    town.losing[kind] = 2
    town.demand()
    done = await town.denoise(await town.leader())
    await until(lambda: town.lost[kind] == 2)
    assert_same(unpack(await fetch(done.bundle)), expected)
    assert steps.repeated() == []


@pytest.mark.parametrize("count", [0, 2])
async def test_a_failure_of_which_the_node_does_not_hear_at_first_only_takes_time(
    town: Town, steps: Steps, expected: Tensors, count: int
) -> None:
    failed: list[int] = []

    def fails(rank: int, denoising: Denoising) -> None:
        if rank == 1 and denoising.steps_taken == 2 and not failed:
            failed.append(rank)
            raise RuntimeError("once")

    steps.fails = fails
    town.demand()
    pull = await town.leader()
    town.losing["WorkerReport"] = count
    done = await town.denoise(pull)
    assert failed
    assert town.lost["WorkerReport"] == count
    assert_same(unpack(await fetch(done.bundle)), expected)
    assert steps.repeated() == []
