"""A coordinator with its door, in this process and over real connections."""

from __future__ import annotations

import random
from pathlib import Path

from spotlight.actors.coordinator.coordinator import Coordinator
from spotlight.actors.coordinator.door import Door
from spotlight.actors.coordinator.key_ring import KeyRing, door_file
from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.runtime import ActorSystem
from spotlight.store.runs_folder import RunsFolder
from spotlight.transport.control import Dialect, ZeroMQTransport
from spotlight.transport.tensors import BundleStore


class Site:
    """A coordinator of this process."""

    def __init__(self, runs: Path, dialect: Dialect | None = None) -> None:
        self._runs = runs
        self._dialect = dialect or own_dialect()

    async def open(self) -> None:
        transport = ZeroMQTransport(dialect=self._dialect)
        self.keys = keys = KeyRing(transport, door_file(self._runs))
        self.system = ActorSystem(transport, rng=random.Random(0), rights=MAY_SAY)
        await self.system.start()
        coordinator = Coordinator(
            RunsFolder(self._runs),
            random.Random(0),
            lambda folder, token: BundleStore(folder, token=token),
            keys,
        )
        await self.system.spawn(lambda: coordinator, "coordinator")
        await self.system.spawn(lambda: Door(keys, coordinator), "door")
        self.operator = keys.new_token("operator")
