"""The machines and processes of a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from spotlight.actors.runtime import Actor, ActorSystem
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.policies.notices import Notice

ActorT = TypeVar("ActorT", bound=Actor)


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
    notices: asyncio.Queue[Notice] = field(default_factory=asyncio.Queue)
    """What the cloud tells a node."""

    @property
    def identity(self) -> str:
        """Differs for every process that bears the name."""
        return f"{self.name}#{self.pid}"

    def actors(self, kind: type[ActorT]) -> list[ActorT]:
        """Those of one kind that live in it; none once it has ended."""
        if self.system is None or self.ended.done():
            return []
        actors = [getattr(cell, "_actor", None) for cell in self.system.cells.values()]
        return [actor for actor in actors if isinstance(actor, kind)]

    async def wait(self) -> int:
        """Its exit code."""
        return await asyncio.shield(self.ended)

    def terminate(self) -> None:
        """As `kill`: a worker keeps nothing that must be saved."""
        self.kill_it(self)

    def kill(self) -> None:
        """End it at once."""
        self.kill_it(self)
