"""The runtime over ZeroMQ between real processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runtime_child import Here, Leave
from runtime_kit import Bump, Explode, Hold, ReadTally, Tally, Watcher, tally

from spotlight.actors.runtime import ActorRef, ActorSystem, Down, handles
from spotlight.actors.runtime.launcher import LocalLauncher, LocalProcess
from spotlight.actors.runtime.loop import CHOICE_VARIABLE
from spotlight.errors import ActorDied, AddressInUse, PeerUnreachable, RemoteError
from spotlight.transport.control import ZeroMQTransport
from spotlight.transport.control.keys import place_of
from spotlight_simulation.open_door import ANYBODY_SAYS_ANYTHING, Everybody

CHILD = Path(__file__).parent / "runtime_child.py"
WITHIN_S = 20.0


class Parent(Watcher):
    """Waits for a child's accountant and watches it."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: asyncio.Future[ActorRef] = asyncio.get_running_loop().create_future()

    @handles(Here)
    async def on_here(self, message: Here) -> None:
        self.watch(message.accountant)
        self.arrived.set_result(message.accountant)


class Family:
    """An actor system here, and a child process with one."""

    def __init__(self, system: ActorSystem, parent: Parent, child: LocalProcess) -> None:
        self.system = system
        self.parent = parent
        self.child = child
        self.accountant = parent.arrived.result()


@pytest.fixture
async def family(tmp_path: Path) -> AsyncIterator[Family]:
    transport = ZeroMQTransport(guests=Everybody())
    system = ActorSystem(transport, rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING)
    await system.start()
    parent = Parent()
    await system.spawn(lambda: parent, "parent")
    kind = "uvloop" if "uvloop" in type(asyncio.get_running_loop()).__module__ else "asyncio"
    argv = [sys.executable, str(CHILD), str(os.getpid()), system.address, "parent"]
    env = {**os.environ, CHOICE_VARIABLE: kind}
    child = await LocalLauncher().start(argv, env, "child", tmp_path / "child.log")
    try:
        async with asyncio.timeout(WITHIN_S):
            await parent.arrived
        yield Family(system, parent, child)
    finally:
        child.kill()
        await child.wait()
        await system.aclose()


@pytest.mark.both_loops
async def test_asks_and_tells_cross_process_borders(family: Family) -> None:
    system, accountant = family.system, family.accountant
    for amount in (2, 3):
        system.tell(accountant, Bump(amount))
    assert await tally(system, accountant) == (1, 2, 3)
    replies = await asyncio.gather(
        *(system.ask(accountant, ReadTally(), timeout_s=10.0) for _ in range(500))
    )
    assert set(replies) == {Tally((1, 2, 3))}
    assert len(system.dead_letters) == 0


async def test_a_remote_error_carries_the_remote_traceback(family: Family) -> None:
    with pytest.raises(RemoteError, match="LookupError: boom") as caught:
        await family.system.ask(family.accountant, Explode("boom"), timeout_s=10.0)
    assert "runtime_kit.py" in caught.value.remote_traceback


async def test_a_remote_crash_is_a_down(family: Family) -> None:
    family.system.tell(family.accountant, Explode("boom"))
    async with asyncio.timeout(WITHIN_S):
        await family.parent.first_down.wait()
    assert family.parent.downs == [Down(family.accountant, "crashed")]
    with pytest.raises(ActorDied):
        await tally(family.system, family.accountant)


async def test_a_process_that_leaves_in_good_order_is_a_stop(family: Family) -> None:
    family.system.tell(family.accountant, Leave())
    async with asyncio.timeout(WITHIN_S):
        await family.parent.first_down.wait()
        assert await family.child.wait() == 0
    assert family.parent.reasons == ["stopped"]


@pytest.mark.both_loops
async def test_a_killed_process_is_a_down_and_fails_the_asks(family: Family) -> None:
    asking = asyncio.ensure_future(family.system.ask(family.accountant, Hold(), timeout_s=60.0))
    await asyncio.sleep(0.05)
    family.child.kill()
    async with asyncio.timeout(WITHIN_S):
        await family.parent.first_down.wait()
    assert family.parent.downs == [Down(family.accountant, "unreachable")]
    with pytest.raises(PeerUnreachable):
        await asking


async def test_a_frozen_process_is_a_down_by_heartbeat(family: Family) -> None:
    os.kill(family.child.pid, signal.SIGSTOP)
    async with asyncio.timeout(WITHIN_S):
        await family.parent.first_down.wait()
    assert family.parent.reasons == ["unreachable"]
    os.kill(family.child.pid, signal.SIGCONT)


async def test_a_port_in_use_is_named_at_the_start(family: Family) -> None:
    place = place_of(family.accountant.address)
    system = ActorSystem(ZeroMQTransport(place), rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING)
    with pytest.raises(AddressInUse, match=place):
        await system.start()
