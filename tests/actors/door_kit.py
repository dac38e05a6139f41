"""A coordinator with its real door, for whoever comes over a memory network, where a process's name
is its key."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from runtime_kit import Cluster, Watcher

from spotlight.actors.coordinator.coordinator import Coordinator
from spotlight.actors.coordinator.door import Door
from spotlight.actors.coordinator.key_ring import KeyRing, door_file
from spotlight.actors.protocol.door import Pool, TokenRole
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.protocol.up import NodeReport, WorkerRefs
from spotlight.actors.runtime import ActorRef, ActorSystem, Message
from spotlight.join_token import JoinToken
from spotlight.store.runs_folder import RunsFolder
from spotlight.transport.control import Guests
from spotlight.transport.control.keys import KeyPair
from spotlight.transport.tensors import BundleStore
from spotlight.types import StoreEndpoint

COORDINATOR = "coordinator"
OPERATOR = "operator"
STORE = StoreEndpoint("127.0.0.1", 1, "token", "machine", "/nowhere")


def key(name: str) -> str:
    """The public key that tests give a process of that name."""
    return KeyPair.derived(name.encode()).public


class Hall:
    """The coordinator's process, and others that come."""

    def __init__(self, cluster: Cluster, runs: Path) -> None:
        self.cluster = cluster
        self.runs = runs
        self.opened = 0

    async def open(self) -> None:
        """Start the coordinator, or the next one."""
        self.opened += 1
        runs, rng = self.runs, random.Random(self.opened)
        loop = asyncio.get_running_loop()
        transport = self.cluster.network.transport(COORDINATOR, guests=Guests())
        self.keys = KeyRing(transport, door_file(runs), clock=loop.time, random_bytes=rng.randbytes)
        if self.opened == 1:
            self.keys.admit_user(OPERATOR, OPERATOR, "operator")
            await self.keys.saved()
        self.system = ActorSystem(transport, rng=rng, rights=MAY_SAY)
        await self.system.start()
        self.cluster.systems.append(self.system)
        coordinator = self.coordinator = Coordinator(
            RunsFolder(runs), rng, lambda folder, token: BundleStore(folder, token=token), self.keys
        )
        await self.system.spawn(lambda: coordinator, COORDINATOR)
        await self.system.spawn(lambda: Door(self.keys, coordinator), "door")

    async def process(self, name: str) -> ActorSystem:
        """One that knows the coordinator and nobody else."""
        guests = Guests({COORDINATOR: "coordinator"})
        return await self.cluster.system(name, guests=guests, rights=MAY_SAY)

    def token(self, role: TokenRole, pool: Pool | None = None, uses: int = 1) -> JoinToken:
        """A new one, for an hour."""
        return self.keys.new_token(role, pool, uses, 3600.0)

    async def holder(self, join: JoinToken) -> ActorSystem:
        """A process of somebody who has that token."""
        return await self.process(join.keys.public)

    async def ask(self, system: ActorSystem, message: Message, actor: str = "door") -> Any:
        """As somebody outside does."""
        ref = system.well_known(f"memory://{COORDINATOR}", actor)
        return await system.ask(ref, message, timeout_s=30.0)


class Visitor:
    """A node that has enrolled, with its workers, each a process of its own."""

    def __init__(self, hall: Hall, system: ActorSystem, pool: Pool) -> None:
        self.hall = hall
        self.system = system
        self.pool = pool
        self.watcher = Watcher(system.well_known(f"memory://{COORDINATOR}", COORDINATOR))
        self.ref: ActorRef
        self.number = 0

    @classmethod
    async def come(cls, hall: Hall, name: str, pool: Pool) -> Visitor:
        """By the key of that name; it watches the coordinator."""
        visitor = cls(hall, await hall.process(key(name)), pool)
        visitor.ref = await visitor.system.spawn(lambda: visitor.watcher, "node")
        return visitor

    async def report(self, node: str, *workers: str, **changes: Any) -> Any:
        """Say that it is that node, with workers that have the keys of these names."""
        self.number += 1
        report = NodeReport(
            self.number,
            node,
            changes.get("pool", self.pool),
            self.ref,
            tuple(
                WorkerRefs(
                    f"{node}/{number}", 1, *[ActorRef(f"memory://{key(worker)}", "a", 1)] * 3
                )
                for number, worker in enumerate(workers)
            ),
            STORE,
        )
        to = self.system.well_known(f"memory://{COORDINATOR}", COORDINATOR)
        return await self.system.ask(to, report, timeout_s=30.0, sender=self.ref)
