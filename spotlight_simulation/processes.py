"""The machines and processes of a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spotlight.actors.protocol.handed_keys import WorkerKeys
from spotlight.actors.runtime import ActorSystem
from spotlight.actors.worker.worker_state import WorkerContext


@dataclass(frozen=True)
class NodeSpec:
    """A machine of the cluster."""

    name: str
    pool: Literal["reserved", "spot"]
    workers: int

    @property
    def processes(self) -> tuple[str, ...]:
        """Its own, and those of its workers."""
        return (self.name, *(f"{self.name}/{index}" for index in range(self.workers)))


@dataclass(eq=False)
class Process:
    """One that was started; also what a launcher returns."""

    name: str
    pid: int
    ended: asyncio.Future[int]
    kill_it: Callable[[Process], None]
    system: ActorSystem | None = None
    context: WorkerContext | None = None

    @property
    def identity(self) -> str:
        """Differs for every process that bears the name."""
        return f"{self.name}#{self.pid}"

    async def wait(self) -> int:
        """Its exit code."""
        return await asyncio.shield(self.ended)

    def terminate(self) -> None:
        """As `kill`: a worker keeps nothing that must be saved."""
        self.kill_it(self)

    def kill(self) -> None:
        """End it at once."""
        self.kill_it(self)


@dataclass
class Launcher:
    """Starts the workers of a node (`ProcessLauncher`).

    Args:
        node: the process of the node.
        begin: starts one, with its name and keys.
    """

    node: Process
    begin: Callable[[str, WorkerKeys], Process]

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        name: str,
        log_path: Path,
        secret: bytes = b"",
    ) -> Process:
        """See `ProcessLauncher.start`."""
        if self.node.ended.done():  # what is left of a killed process starts nothing
            await asyncio.Future()
        return self.begin(name, WorkerKeys.decode(secret))
