"""Actors, messages and a small cluster for the tests of the runtime."""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Any

from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Down, Message, handles
from spotlight.transport.control import Guests
from spotlight_simulation.memory_network import Faults, MemoryNetwork, MemoryTransport
from spotlight_simulation.open_door import ANYBODY_SAYS_ANYTHING, Everybody


class Bump(Message, frozen=True):
    """Add to a tally."""

    amount: int


class UrgentBump(Message, frozen=True):
    """Add to a tally, ahead of ordinary messages."""

    lane = "system"

    amount: int


class Tally(Message, frozen=True):
    """The amounts so far, in order."""

    amounts: tuple[int, ...]


class ReadTally(Message, frozen=True):
    """Ask for the tally."""


class Explode(Message, frozen=True):
    """Make the handler raise."""

    text: str


class Hold(Message, frozen=True):
    """Make the handler wait until the actor's gate opens."""


class ReadLater(Message, frozen=True):
    """Ask for the tally as it is once the actor's gate opens; others are handled meanwhile."""


class Unwanted(Message, frozen=True):
    """Nobody handles this."""


class WhoAsks(Message, frozen=True):
    """Ask for the sender's name."""


class Name(Message, frozen=True):
    """A name."""

    name: str


class Accountant(Actor):
    """Keeps a tally; explodes and waits on request."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.amounts: list[int] = []
        self.gate = gate or asyncio.Event()
        self.holding = asyncio.Event()
        self.stopped_because: str | None = None

    @handles(Bump, UrgentBump)
    async def on_bump(self, message: Bump | UrgentBump) -> None:
        self.amounts.append(message.amount)

    @handles(ReadTally)
    async def on_read(self, message: ReadTally) -> Tally:
        return Tally(tuple(self.amounts))

    @handles(Explode)
    async def on_explode(self, message: Explode) -> None:
        raise LookupError(message.text)

    @handles(Hold)
    async def on_hold(self, message: Hold) -> None:
        self.holding.set()
        await self.gate.wait()

    @handles(ReadLater)
    async def on_read_later(self, message: ReadLater) -> asyncio.Task[Tally]:
        return self.run_task(self._read_later())

    async def _read_later(self) -> Tally:
        self.holding.set()
        await self.gate.wait()
        if not self.amounts:
            raise LookupError("nothing to tell")
        return Tally(tuple(self.amounts))

    @handles(WhoAsks)
    async def on_who(self, message: WhoAsks) -> Name:
        return Name(self.sender.name if self.sender is not None else "nobody")

    async def stopping(self, reason: str) -> None:
        self.stopped_because = reason


class Watcher(Actor):
    """Collects the `Down`s of what it watches."""

    def __init__(self, *refs: ActorRef) -> None:
        self.refs = refs
        self.downs: list[Down] = []
        self.first_down = asyncio.Event()

    async def started(self) -> None:
        for ref in self.refs:
            self.watch(ref)

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        self.downs.append(message)
        self.first_down.set()

    @property
    def reasons(self) -> list[str]:
        """Why what was watched ended, in order of hearing."""
        return [down.reason for down in self.downs]


class Cluster:
    """Actor systems of several processes on one memory network; closed at the end of the `async
    with`. Unless told otherwise they all know each other, and may say anything."""

    def __init__(self, seed: int = 0, faults: Faults | None = None, **system_options: Any) -> None:
        self.network = MemoryNetwork(random.Random(seed), faults)
        self.systems: list[ActorSystem] = []
        self._options = system_options
        self._seed = seed

    async def system(self, name: str, **options: Any) -> ActorSystem:
        """Start the actor system of one more process."""
        system, _ = await self.process(name, **options)
        return system

    async def process(
        self, name: str, *, guests: Guests | None = None, **options: Any
    ) -> tuple[ActorSystem, MemoryTransport]:
        """The same, with its transport."""
        known = guests if guests is not None else Everybody()
        transport = self.network.transport(name, guests=known)
        settings = {"rights": ANYBODY_SAYS_ANYTHING, **self._options, **options}
        system = ActorSystem(transport, rng=random.Random(f"{self._seed} {name}"), **settings)
        await system.start()
        self.systems.append(system)
        return system, transport

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for system in reversed(self.systems):
            await system.aclose()


class Pair:
    """Where an actor lives and from where it is addressed; the same process or two."""

    def __init__(self, cluster: Cluster, here: ActorSystem, there: ActorSystem) -> None:
        self.cluster = cluster
        self.here = here
        self.there = there


async def tally(system: ActorSystem, ref: ActorRef) -> tuple[int, ...]:
    """What an `Accountant` has counted."""
    reply = await system.ask(ref, ReadTally(), timeout_s=10.0)
    assert isinstance(reply, Tally)
    return reply.amounts
