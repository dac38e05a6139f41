"""A program with a loop of its own, and a simulated cluster that serves it on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from spotlight.actors.coordinator.session.session_groups import requests_of
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.sessions import DoneGroup, GroupOrder
from spotlight.actors.runtime import ActorSystem
from spotlight.errors import SpotlightError
from spotlight.jobs import WorkSpec, work_from_data
from spotlight.rollouts.session_link import SessionLink
from spotlight.types import SamplingSettings
from spotlight_simulation import fingerprints
from spotlight_simulation.chaos import silence
from spotlight_simulation.fake_denoising import decode_commit
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.processes import NodeSpec

NODES = (NodeSpec("a", "reserved", 1), NodeSpec("b", "spot", 1))
PROMPT = 'the number "17"'


def work(**changes: Any) -> WorkSpec:
    """What is to be denoised; `changes` replace fields, or update sections."""
    data: dict[str, Any] = {
        "model": {"checkpoint": "builtin:ocr-tiny"},
        "sampler": {"height": 32, "width": 64, "steps": 8, "micro_batch": 4},
        "rewards": [{"kind": "ocr"}],
    }
    for name, value in changes.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return work_from_data(data)


def order(number: int, version: int = 0, seeds: int = 4, **changes: Any) -> GroupOrder:
    """A prompt group."""
    wanted = GroupOrder(number, "rollout", PROMPT, tuple(range(seeds)), version)
    return msgspec.structs.replace(wanted, **changes)


class Program:
    """Somebody's loop: what it has published, and the groups that it got."""

    def __init__(self, cluster: Cluster, system: ActorSystem, spec: WorkSpec, name: str) -> None:
        self.cluster = cluster
        self.system = system
        self.store = cluster.stores.open("user", f"program {name}")
        self.offers: dict[int, WeightsOffer] = {}
        self.groups: list[DoneGroup] = []
        self.latents: dict[int, list[str]] = {}
        """Of a group's samples, by its number."""
        self.pictures: dict[int, bytes] = {}
        """By seed."""
        self.lost: list[SpotlightError] = []
        self.link = SessionLink(
            system,
            cluster.coordinator_actor(),
            name,
            spec,
            offers=self.offers,
            program=self,
        )

    def lose(self, error: SpotlightError) -> None:
        self.lost.append(error)

    async def deliver(self, group: DoneGroup) -> None:
        found = []
        for sample in group.samples:
            if sample.bundle is not None:
                data = await self.cluster.stores.fetch(sample.bundle)
                found.append(decode_commit(data).rows[sample.row].latents)
            if sample.picture is not None:
                self.pictures[sample.seed] = await self.cluster.stores.fetch(sample.picture)
        self.latents[group.number] = found
        self.groups.append(group)

    def expected(self, wanted: GroupOrder) -> list[str]:
        """The latents that follow from what was asked for."""
        sampler = work().sampler
        settings = SamplingSettings(
            kind="ode",
            steps=sampler.steps,
            height=sampler.height,
            width=sampler.width,
            micro_batch=4,
        )
        return [
            fingerprints.sample(f"weights {wanted.version}", request)
            for request in requests_of(wanted, settings)
        ]

    def left_in_store(self) -> list[str]:
        """Keys of what the coordinator keeps for it."""
        stores = self.cluster.stores.all_in_use()
        return [
            key for folder, disk in stores.items() if "session-" in folder for key in disk.bundles
        ]

    async def publish(self, version: int, weights: str = "") -> None:
        """Fingerprints stand for the weights; all versions are kept."""
        named = fingerprints.Weights(version, weights or f"weights {version}")
        data = self.store.put(f"weights/{version}", msgspec.msgpack.encode(named))
        offer = WeightsOffer(version, (data,))
        await self.link.offer(offer, {version, *self.offers})
        self.offers[version] = offer

    async def done(self, count: int, limit_s: float = 300.0) -> list[DoneGroup]:
        """When it has so many groups."""
        async with asyncio.timeout(limit_s):
            while len(self.groups) < count:
                if self.lost:
                    raise self.lost[0]
                await asyncio.sleep(0.1)
        return sorted(self.groups, key=lambda group: group.number)


@asynccontextmanager
async def program(cluster: Cluster, name: str = "tries", **changes: Any) -> AsyncIterator[Program]:
    """One that has begun its session, in a process of its own, and ends it."""
    system = cluster.system_of(f"program-{name}", rng=random.Random(1))
    await system.start()
    loop = Program(cluster, system, work(**changes), name)
    await loop.store.start()
    await loop.link.begin()
    try:
        yield loop
    finally:
        await loop.link.end()
        await system.aclose()


def simulate(
    folder: Path, scene: Callable[[Cluster], Coroutine[Any, Any, None]], nodes: Any = NODES
) -> Cluster:
    """Play a scene on a cluster whose coordinator and nodes are up; nothing is violated."""

    async def play() -> Cluster:
        cluster = Cluster(7, folder, nodes)
        async with cluster:
            await cluster.start_coordinator()
            for node in nodes:
                await cluster.start_node(node.name)
            await scene(cluster)
            assert not cluster.history.violations, cluster.history.violations
        return cluster

    with silence(), asyncio.Runner(loop_factory=FreezableLoop) as runner:
        return runner.run(play())
