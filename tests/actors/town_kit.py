"""A coordinator that can be killed on virtual time, with its fake nodes, and what its run left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_nodes import FakeNode
from job_kit import World, job, recorder, rng, status
from runtime_kit import Cluster

from spotlight.actors.coordinator.coordinator import Coordinator
from spotlight.actors.coordinator.job.mirroring import MirrorPlace
from spotlight.actors.protocol.trainer import Train
from spotlight.actors.protocol.users import JobAccepted, JobStatus, SubmitJob
from spotlight.actors.runtime import ActorRef, ActorSystem, Message
from spotlight.jobs import JobSpec
from spotlight.store.run_folder import RunFolder
from spotlight.store.runs_folder import RunsFolder
from spotlight.transport.tensors import ArtifactStore, BundleStore
from spotlight_simulation.key_for_everybody import KeyForEverybody


class Town:
    """A coordinator and its fake nodes, each a process of its own."""

    def __init__(self, cluster: Cluster, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.runs = runs
        self.world = World()
        self.mirror: MirrorPlace | None = None
        """Where the coordinator copies runs to."""
        self.nodes: dict[str, ActorSystem] = {}
        self.workers: dict[str, ActorSystem] = {}
        self._folders: list[RunFolder] = []
        self._stores: list[ArtifactStore] = []
        folders = self._folders

        class Tracked(RunFolder):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                folders.append(self)

        monkeypatch.setattr("spotlight.actors.coordinator.coordinator.RunFolder", Tracked)

    async def open(self) -> None:
        """Start the coordinator, or let it come back."""
        self.system = await self.cluster.system("coordinator")
        self.coordinator = await self.begin(self.system)
        self.user = await recorder(self.system, "user")

    async def begin(self, system: ActorSystem) -> ActorRef:
        """A coordinator in that process."""

        def coordinator() -> Coordinator:
            return Coordinator(
                RunsFolder(self.runs),
                rng(),
                self._open_store,
                KeyForEverybody(system.post.transport),
                mirror=self.mirror,
            )

        return await system.spawn(coordinator, "coordinator")

    async def kill(self) -> None:
        """End the coordinator's process at once; what it had open is closed by the kernel."""
        await self.system.abort()
        for folder in self._folders:
            folder.close()
        for store in self._stores:
            await store.aclose()

    def _open_store(self, folder: Path, token: str) -> ArtifactStore:
        store = self.world.run_store = BundleStore(folder, token=token)
        self._stores.append(store)
        return store

    async def join(self, name: str, pool: str, process: str = "", *, apart: bool = False) -> None:
        """A node with one worker, which lives `apart` in a process of its own, or in the node's."""
        system = await self.cluster.system(process or name)
        self.nodes[name] = system
        worker = self.workers[name] = await self.cluster.system(f"{name}/0") if apart else system
        coordinator: ActorRef = system.well_known(self.system.address, "coordinator")
        other = worker if apart else None
        await system.spawn(
            lambda: FakeNode(name, pool, coordinator, self.world, apart=other), "node"
        )

    def cut_off(self, *systems: ActorSystem) -> Callable[[], None]:
        """Let nothing through between these processes and the coordinator; returns what heals."""
        here = [system.address for system in systems]
        self.cluster.network.partition(here, [self.system.address])
        cuts = [(one, self.system.address) for one in here]
        return lambda: self.cluster.network.heal([*cuts, *((b, a) for a, b in cuts)])

    async def join_later(self, name: str, pool: str, process: str = "") -> None:
        """The same, while the coordinator may be away."""
        system = await self.cluster.system(process or name)
        self.nodes[name] = system
        coordinator: ActorRef = system.well_known(self.system.address, "coordinator")
        node = FakeNode(name, pool, coordinator, self.world, patient=True)
        await system.spawn(lambda: node, "node")

    async def submit(self, spec: JobSpec | None, folder: str = "", resume: bool = False) -> Any:
        """What the coordinator answers."""
        message = SubmitJob(spec or job(), folder, resume)
        return await self.ask(message)

    async def ask(self, message: Message) -> Any:
        """As a user does."""
        return await self.system.ask(self.coordinator, message, timeout_s=30.0)

    async def status(self) -> JobStatus:
        """What the coordinator says."""
        return await status(self.system, self.coordinator)

    async def wait(self, until: Callable[[JobStatus], bool], limit_s: float = 600.0) -> JobStatus:
        """The first status of which that is true."""
        async with asyncio.timeout(limit_s):
            while not until(now := await self.status()):  # noqa: ASYNC110 (as users do)
                await asyncio.sleep(0.5)
        return now

    async def ended(self) -> JobStatus:
        """The last status of the job; its nodes are free by then."""
        end = await self.wait(lambda now: bool(now.outcome))
        await asyncio.sleep(0.1)
        return end

    async def run(self, spec: JobSpec) -> JobStatus:
        """A job from its submission to its end."""
        accepted = await self.submit(spec)
        assert isinstance(accepted, JobAccepted), accepted
        return await self.ended()


def lines(run: str, name: str) -> list[dict[str, Any]]:
    """Of a file in a run folder."""
    return [json.loads(line) for line in (Path(run) / name).read_text().splitlines()]


def events(run: str, name: str) -> list[dict[str, Any]]:
    """Of one kind."""
    return [event for event in lines(run, "events.jsonl") if event["event"] == name]


def iterations(run: str) -> list[dict[str, Any]]:
    """Those on record."""
    return [record for record in lines(run, "metrics.jsonl") if record["kind"] == "iteration"]


def validated(run: str) -> list[int]:
    """Weights versions on record."""
    metrics = lines(run, "metrics.jsonl")
    return [record["weights_version"] for record in metrics if record["kind"] == "validation"]


def trained_samples(trained: list[Train]) -> list[list[tuple[str, float]]]:
    """What an update was made of; rewards, and so advantages, are functions of prompt and seed."""
    return [[(s.prompt, s.advantage) for s in train.samples] for train in trained]


CALM: dict[bytes, list[Train]] = {}
"""What undisturbed runs have trained, by their jobs."""


async def calm(town: Town, spec: JobSpec) -> list[Train]:
    """What an undisturbed run trains, which depends on the job alone; the world has forgotten it
    afterwards.
    """
    key = msgspec.json.encode(spec)
    if key not in CALM:
        assert (await town.run(spec)).outcome == "finished"
        CALM[key] = town.world.trained
        fresh = World()
        for name in (
            "trained",
            "started",
            "published",
            "granted",
            "freed",
            "scored",
        ):
            setattr(town.world, name, getattr(fresh, name))
    return CALM[key]
