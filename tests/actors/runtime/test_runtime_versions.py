"""What an actor system makes of a process whose build says other things."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from runtime_kit import Accountant, tally

from spotlight.actors.runtime import ActorSystem
from spotlight.errors import OtherVersion, PeerUnreachable
from spotlight.transport.control import Dialect, KeyPair, ZeroMQTransport
from spotlight_simulation.open_door import ANYBODY_SAYS_ANYTHING, Everybody

OLD, NEW = Dialect("0.1.0", "0123456789abcdef"), Dialect("0.2.0", "fedcba9876543210")

Start = Callable[..., Awaitable[ActorSystem]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[ActorSystem] = []

    async def start(dialect: Dialect, keys: KeyPair | None = None) -> ActorSystem:
        transport = ZeroMQTransport(keys=keys, guests=Everybody(), dialect=dialect)
        system = ActorSystem(transport, rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING)
        await system.start()
        started.append(system)
        return system

    yield start
    for system in reversed(started):
        await system.aclose()


async def test_an_ask_of_a_process_of_another_build_fails_with_both_builds(start: Start) -> None:
    old, new = await start(OLD), await start(NEW)
    ref = await new.spawn(Accountant, "accountant")
    with pytest.raises(
        OtherVersion, match=r"it is Spotlight 0\.2\.0 \(fedcba98\), and this is 0\.1\.0 \(01"
    ):
        await tally(old, ref)
    assert await tally(new, ref) == ()


async def test_a_process_remembers_by_key_whom_it_did_not_understand(start: Start) -> None:
    keys = KeyPair.new()
    old, new = await start(OLD, keys), await start(NEW)
    ref = await new.spawn(Accountant, "accountant")
    with pytest.raises(OtherVersion):
        await tally(old, ref)
    assert new.post.other_versions == {keys.public: OLD}
    await old.aclose()
    updated = await start(NEW, keys)
    assert await tally(updated, ref) == ()
    assert new.post.other_versions == {}


async def test_what_follows_at_once_is_unreachable_all_the_same(start: Start) -> None:
    old, new = await start(OLD), await start(NEW)
    ref = await new.spawn(Accountant, "accountant")
    for _ in range(3):
        with pytest.raises(PeerUnreachable, match="same build"):
            await tally(old, ref)
