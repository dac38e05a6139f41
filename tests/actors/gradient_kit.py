"""As much of a job runner as gradients of slices have to do with, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from fleet_kit import JobNodes
from job_kit import STORE, Recorder, job, offer, recorder
from msgspec import structs
from runtime_kit import Cluster

from spotlight.actors.coordinator.job.gradient_work import GradientWork
from spotlight.actors.coordinator.tenant.publications import Publications
from spotlight.actors.coordinator.tenant.rank import Rank
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.gradients import AddSlices, OpenUpdate
from spotlight.actors.protocol.up import NodeNotice, NodeReport, WorkerRefs
from spotlight.actors.runtime import Actor
from spotlight.jobs import JobSpec
from spotlight.policies.requests.pace import Pace
from spotlight.record.run_events import RunEvent
from spotlight.timings import WeightsTimings
from spotlight.types import (
    BundleOffer,
    Request,
    Result,
    Slice,
    StoreEndpoint,
    TrainingSample,
    UpdateSlices,
)

SLICES = 4
SAMPLES = 8
ITERATION = 2
UPDATE = 5
"""So many updates were taken before."""


def node_store(name: str) -> StoreEndpoint:
    return structs.replace(STORE, machine=name)


def sliced(mode: str = "none", **training: Any) -> JobSpec:
    return job(training={"slices": SLICES, **training}, exploration={"mode": mode})


def share(rank: int = 0, **changes: Any) -> UpdateSlices:
    """Two samples a slice."""
    slices = tuple(
        Slice(place, (2 * place, 2 * place + 1), (2 * place, 2 * place + 1), 0, 2)
        for place in range(SLICES)
    )
    plain = UpdateSlices(ITERATION, 1, rank, 1, 1.0, slices)
    return structs.replace(plain, **changes)


def update(rank: int = 0, number: int = UPDATE, node: str = "r0", **changes: Any) -> OpenUpdate:
    """What a rank says that begins one."""
    weights = offer(f"weights/lent1-rollout-{rank}", node_store(node))
    return structs.replace(OpenUpdate(number, share(rank), weights), **changes)


class Requests:
    """What the queue of requests is asked for."""

    def __init__(self) -> None:
        self.open: dict[str, Request] = {}
        """In the order in which they were asked for."""
        self.computing: list[frozenset[str]] = []
        self.versatile: list[frozenset[str]] = []
        self.forgotten: list[tuple[str, int]] = []

    def submit(self, requests: Iterable[Request]) -> None:
        self.open.update({request.id: request for request in requests})

    def cancel(self, kind: str) -> None:
        assert kind == "gradient"
        self.open.clear()

    def compute(self, names: frozenset[str], versatile: frozenset[str]) -> None:
        self.computing.append(names)
        self.versatile.append(versatile)

    def forget(self, kind: str, iteration: int) -> None:
        self.forgotten.append((kind, iteration))


class Office(Actor):
    """Stands for the job runner; `gradients` is tested."""

    def __init__(self, cluster: Cluster, spec: JobSpec) -> None:
        self.cluster, self.spec = cluster, spec
        self.phase = SimpleNamespace(name="train")
        self.nodes = JobNodes()
        self.roster = self.nodes.tenant
        self.requests = Requests()
        self.events: list[RunEvent] = []
        self.reminders = 0
        self.team: Any = SimpleNamespace(machine=SimpleNamespace(ranks=()), remind=self._remind)
        self.lent = Publications({}, self.roster, WeightsTimings())
        self.publications = Publications({}, self.roster, WeightsTimings())
        self.briefing = SimpleNamespace(share_backlog=lambda: None, weights_published=lambda: None)
        self.profile = SimpleNamespace(step_s=lambda *which: None)
        self.machine = SimpleNamespace(completed=ITERATION)
        self.progress: Any = SimpleNamespace(
            metrics=SimpleNamespace(slices=0, slices_by_others=0),
            exploration=SimpleNamespace(worth=SimpleNamespace(is_known=False)),
        )
        self.table = SimpleNamespace(
            pace=Pace(self.profile),  # type: ignore[arg-type]
            fails_gradients=lambda worker: worker in self.failing,
            waits_its_turn=lambda request: request in self.waiting,
        )
        self.failing: set[str] = set()
        self.waiting: set[str] = set()
        """Requests whose worker has something else to do before them."""
        self.shares: Any = None
        self.ranks: list[Recorder] = []
        self.gradients = GradientWork(self)  # type: ignore[arg-type]
        self._epochs = 0

    def _remind(self) -> None:
        self.reminders += 1

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    @property
    def trainers(self) -> frozenset[str]:
        return frozenset(rank.name for rank in self.team.machine.ranks)

    def event(self, event: RunEvent) -> None:
        self.events.append(event)

    async def join(self, name: str, pool: Any = "spot", device: str = "cpu A") -> Recorder:
        """A node with one worker."""
        self._epochs += 1
        system = await self.cluster.system(name)
        worker = await recorder(system, "worker")
        refs = WorkerRefs(f"{name}/0", self._epochs, *[worker.ref] * 3, device)
        self.nodes.hear(NodeReport(1, name, pool, worker.ref, (refs,), node_store(name)))
        return worker

    def notice(self, name: str) -> None:
        """The node must leave soon."""
        report = structs.replace(self.roster.nodes[name], notice=NodeNotice("user", 30.0))
        self.nodes.hear(structs.replace(report, number=report.number + 1))

    async def train_on(self, *names: str, devices: tuple[str, ...] = ("cpu A", "cpu A")) -> None:
        """A rank on each of these new nodes."""
        for name, device in zip(names, devices, strict=False):
            self.ranks.append(await self.join(name, "reserved", device))
        found = [(name, self.roster.nodes[name]) for name in names]
        self.team.machine.ranks = tuple(
            Rank(node.workers[0], name, node_store(name)) for name, node in found
        )

    def begin(self, count: int = SAMPLES, iteration: int = ITERATION) -> tuple[TrainingSample, ...]:
        """The ranks are told to train on so many samples."""
        samples = tuple(
            TrainingSample(f"prompt {n}", offer(f"samples/{n}"), 0, 0.5, 100 + n)
            for n in range(count)
        )
        self.gradients.begin(iteration, samples, 3)
        return samples

    def publish(self, nbytes: int) -> None:
        """The weights of the iteration, of so many bytes, are published."""
        part = structs.replace(offer("weights/000002-rollout-0"), nbytes=nbytes)
        self.publications.add(WeightsOffer(ITERATION, (part,)), keep=())

    def asked(self) -> list[tuple[int, int]]:
        """Rank and place of the slices that are asked for, in order."""
        return [divmod(request.group, 64) for request in self.requests.open.values()]

    def request(self, place: int, rank: int = 0) -> Request:
        """That for a slice."""
        group = 64 * rank + place
        (found,) = (it for it in self.requests.open.values() if it.group == group)
        return found

    def computed(self, *requests: Request, worker: str = "s0/0", store: str = "s0") -> None:
        """The gradients of these are there, in the store of a node."""
        self.gradients.finished(
            [Result(it, (), self.gradient(it.group % 64, worker, store), 0) for it in requests]
        )

    @staticmethod
    def gradient(place: int, worker: str = "s0/0", store: str = "s0") -> BundleOffer:
        return offer(f"gradients/{worker}/{place}", node_store(store))

    def directions(self) -> dict[tuple[str, int], list[str]]:
        """Who is told to get what of that which was lent: node, how many updates were taken
        before, and from which machines the parts."""
        return {
            (node, lent.version): [part.store.machine for part in lent.rollout]
            for node, lent in self.lent.directions(0.0)
        }

    def told(self, rank: int = 0) -> list[tuple[int, list[int]]]:
        """What a rank was told: the update, and the places of its slices that are computed."""
        return [
            (message.number, [done.place for done in message.slices])
            for message in self.ranks[rank].all(AddSlices)
        ]


@asynccontextmanager
async def open_office(spec: JobSpec) -> AsyncIterator[Office]:
    async with Cluster() as cluster:
        office = Office(cluster, spec)
        system = await cluster.system("coordinator")
        await system.spawn(lambda: office, "runner")
        yield office
