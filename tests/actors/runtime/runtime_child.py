"""A child process for the tests of the runtime: one accountant that reports to a watcher in the
parent.

Run as `python runtime_child.py PARENT_PID ADDRESS NAME`; it says `Here` to the actor NAME at
ADDRESS, then serves until it is told to end.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from runtime_kit import Accountant, Bump

from spotlight.actors.runtime import ActorRef, ActorSystem, Message, handles
from spotlight.actors.runtime.launcher import die_with_parent
from spotlight.actors.runtime.loop import run
from spotlight.transport.control import ZeroMQTransport
from spotlight_simulation.open_door import ANYBODY_SAYS_ANYTHING, Everybody


class Here(Message, frozen=True):
    """The child is up; this is its accountant."""

    accountant: ActorRef


class Leave(Message, frozen=True):
    """End the child in good order."""


class ChildAccountant(Accountant):
    """An accountant that can end its process, or block its event loop."""

    def __init__(self, leaving: asyncio.Event) -> None:
        super().__init__()
        self.leaving = leaving

    @handles(Leave)
    async def on_leave(self, message: Leave) -> None:
        self.leaving.set()


async def serve(address: str, name: str) -> None:
    transport = ZeroMQTransport(guests=Everybody())
    system = ActorSystem(transport, rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING)
    await system.start()
    leaving = asyncio.Event()
    accountant = await system.spawn(lambda: ChildAccountant(leaving), "accountant")
    system.tell(accountant, Bump(1))
    await system.ask(system.well_known(address, name), Here(accountant), timeout_s=10.0)
    await leaving.wait()
    await system.aclose()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    run(serve(sys.argv[2], sys.argv[3]))
