"""Trainer ranks that leave their state, and what becomes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

from fleet_kit import JobNodes
from job_kit import STORE, Recorder, offer, recorder, settle
from msgspec import structs
from runtime_kit import Cluster

from spotlight.actors.coordinator.job.job_record import JobRecord
from spotlight.actors.coordinator.job.run_record import RunRecord
from spotlight.actors.coordinator.job.trainers import Trainers
from spotlight.actors.coordinator.job.training_state import TrainingStates
from spotlight.actors.coordinator.tenant.job_journal import (
    JobJournal,
)
from spotlight.actors.coordinator.tenant.rank import Rank
from spotlight.actors.coordinator.tenant.tenant_log import TenantLog
from spotlight.actors.protocol.trainer import (
    ExportedModel,
    SavedState,
    SaveState,
    TrainerReport,
    state_key,
)
from spotlight.actors.protocol.up import NodeReport, WorkerRefs
from spotlight.actors.runtime import Actor
from spotlight.jobs import JobSpec
from spotlight.policies.iteration import Schedule
from spotlight.store.run_folder import RunFolder, artifacts_of, checkpoint_path
from spotlight.transport.tensors import BundleStore
from spotlight.types import BundleOffer, StoreEndpoint

SCHEDULE = Schedule(iterations=9, validate_every=9, checkpoint_every=3, explores="never")
"""A checkpoint is due after 3, 6 and 9 iterations."""


def node_store(name: str) -> StoreEndpoint:
    return structs.replace(STORE, machine=name)


class SlowStore(BundleStore):
    """Hands out when it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, token="token")
        self.may_hand_out = asyncio.Event()
        self.may_hand_out.set()

    async def hand_out(self, key: str, path: Path) -> None:
        await self.may_hand_out.wait()
        await super().hand_out(key, path)


def part_of_state(completed: int, part: int) -> bytes:
    """Two rows of a tensor, as a sharded rank leaves them."""
    offsets = {"weights/a": {"saved_offsets": [2 * part]}}
    metadata = {"completed": str(completed), "DCP_SHARDING_INFO": json.dumps(offsets)}
    header = {
        "__metadata__": metadata,
        "weights/a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes([2 * part, 2 * part + 1])


class Owner(Actor):
    """As much of a job runner as what trainers leave has to do with."""

    came_back, is_over = False, False
    listens_until = 0.0
    progress = SimpleNamespace(schedule=SCHEDULE)
    gradients = SimpleNamespace(workers=SimpleNamespace(helping=frozenset()))

    def fail(self, reason: str) -> None:
        self.failed(reason)

    def now(self) -> float:
        return asyncio.get_running_loop().time()


class Depot:
    """Trainer ranks on some nodes, a run folder with its store, and what is called."""

    def __init__(self, cluster: Cluster, folder: RunFolder, spec: JobSpec) -> None:
        self.spec = spec
        self.cluster = cluster
        self.folder = folder
        self.store = SlowStore(artifacts_of(folder.path))
        self.nodes = JobNodes()
        self.used: list[int] = []
        self.checkpointed: list[int] = []
        self.exported = 0
        self.failures: list[str] = []
        self.ranks: list[Recorder] = []

    async def open(self) -> None:
        await self.store.start()
        system = await self.cluster.system("coordinator")
        runner = self.runner = Owner()
        await system.spawn(lambda: runner, "runner")
        runner.failed = self.failures.append
        self.record = JobRecord(RunRecord(self.folder), TenantLog("id", "job", "operator"), runner)
        self.journal = JobJournal(
            self.folder.journal, self.store, lambda error: self.record.stop_for(error)
        )
        runner.spec, runner.store, runner.roster = self.spec, self.store, self.nodes.tenant
        runner.journal, runner.record = self.journal, self.record
        runner.rollouts = SimpleNamespace(release=self.used.append)
        runner.keepers = SimpleNamespace(released=lambda: None)
        runner.publisher = SimpleNamespace(state_kept=lambda: None)
        runner.saved, runner.exported = self.checkpointed.append, self._count_export
        self.states = runner.states = TrainingStates(runner)
        self.team = runner.team = Trainers(runner)

    def _count_export(self) -> None:
        self.exported += 1

    async def train_on(self, *nodes: str) -> None:
        """A rank on each of these nodes, which may be named more than once."""
        appointed = []
        for number, name in enumerate(nodes):
            system = await self.cluster.system(f"{name}/{number}")
            rank = await recorder(system, "trainer")
            self.ranks.append(rank)
            worker = WorkerRefs(f"{name}/{number}", 10 + number, *[rank.ref] * 3)
            appointed.append(Rank(worker, name, node_store(name)))
            self.nodes.hear(NodeReport(1, name, "reserved", rank.ref, (worker,), node_store(name)))
        self.team.machine.ranks = tuple(appointed)

    async def told(self) -> dict[int, SaveState]:
        """Which ranks are to save, by the latest order."""
        await settle()
        return {
            number: rank.last(SaveState)
            for number, rank in enumerate(self.ranks)
            if rank.all(SaveState)
        }

    async def save(self, completed: int, *, answer: bool = True) -> None:
        """The ranks leave their state, and say so in the order of their numbers."""
        self.team.save(completed)
        for number, order in (await self.told()).items():
            if order.iteration == completed and answer:
                await self.hear(number, self.saved(order))
        await settle()

    async def hear(self, number: int, answer: SavedState | ExportedModel) -> None:
        """A rank says that it has carried out an order."""
        report = TrainerReport(self.journal.term, number, 1)
        field = "saved" if isinstance(answer, SavedState) else "exported"
        await self.team.report(structs.replace(report, **{field: answer}))

    def saved(self, order: SaveState) -> SavedState:
        """What a rank says that has carried the order out."""
        return SavedState(order.iteration, tuple(self._left(order, to) for to in order.stores))

    def _left(self, order: SaveState, to: StoreEndpoint) -> BundleOffer:
        key = state_key(order.iteration, order.part)
        if to.place != self.store.endpoint.place:
            return offer(key, to)
        if self.spec.training.sharded:
            return self.store.put(key, part_of_state(order.iteration, order.part))
        return self.store.put(key, f"state {order.iteration}".encode())

    def checkpoint(self, completed: int) -> Path:
        return self.folder.path / checkpoint_path(completed)

    def events(self) -> str:
        return (self.folder.path / "events.jsonl").read_text()


@asynccontextmanager
async def open_depot(run: Path, spec: JobSpec) -> AsyncIterator[Depot]:
    """One of a new run folder."""
    folder = RunFolder.create(run, spec)
    async with Cluster() as cluster:
        depot = Depot(cluster, folder, spec)
        await depot.open()
        yield depot
        await depot.store.aclose()
    folder.close()
