"""Whom every control transport connects with, and whom no more; on both event loops."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
from transport_kit import WITHIN_S, Recorder

from spotlight.errors import PeerUnreachable
from spotlight.timings import ConnectionTimings
from spotlight.transport.control import (
    NOT_ADMITTED,
    ControlTransport,
    Guests,
    KeyPair,
    ZeroMQSettings,
    ZeroMQTransport,
    key_of,
)
from spotlight_simulation.memory_network import MemoryNetwork

pytestmark = pytest.mark.both_loops

TIMES = ConnectionTimings(redial_after_s=0.02, longest_redial_s=0.05)


@dataclass
class Member:
    """A process of the network."""

    transport: ControlTransport
    heard: Recorder

    @property
    def address(self) -> str:
        return self.transport.address

    @property
    def key(self) -> str:
        return key_of(self.transport.address)

    def knows(self, *others: Member) -> None:
        for other in others:
            self.transport.guests.admit(other.key, "peer")

    def send(self, other: Member, frame: bytes) -> None:
        self.transport.send(other.address, frame)


class Net:
    """Makes processes of one kind that know nobody yet, and ends them."""

    def __init__(self, make: Callable[[], ControlTransport], absent: str) -> None:
        self._make = make
        self.absent = absent
        """An address where nobody is."""
        self.members: list[Member] = []

    async def join(self) -> Member:
        member = Member(self._make(), Recorder())
        await member.transport.start(member.heard)
        self.members.append(member)
        return member

    async def friends(self, count: int) -> list[Member]:
        """So many who know each other."""
        members = [await self.join() for _ in range(count)]
        for member in members:
            member.knows(*(other for other in members if other is not member))
        return members


def _in_memory() -> Net:
    network = MemoryNetwork(random.Random(0), times=TIMES)
    names = iter(f"process-{number}" for number in range(10))
    return Net(lambda: network.transport(next(names), guests=Guests()), "memory://absent")


def _over_tcp() -> Net:
    def make() -> ControlTransport:
        settings = ZeroMQSettings(TIMES)
        return ZeroMQTransport(keys=KeyPair.new(), guests=Guests(), settings=settings)

    return Net(make, f"tcp://127.0.0.1:9/{KeyPair.new().public}")


@pytest.fixture(params=["memory", "zeromq"])
async def net(request: pytest.FixtureRequest) -> AsyncIterator[Net]:
    net = _in_memory() if request.param == "memory" else _over_tcp()
    yield net
    for member in reversed(net.members):
        await member.transport.aclose()


async def _insist(a: Member, b: Member, frame: bytes) -> None:
    """Send as soon as it may be dialled."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return a.send(b, frame)
            except PeerUnreachable:
                await asyncio.sleep(0.01)


async def _until_it_arrives(a: Member, b: Member, frame: bytes) -> None:
    """Send until it has come."""
    async with asyncio.timeout(WITHIN_S):
        while frame not in b.heard.frames():
            await _insist(a, b, frame)
            await asyncio.sleep(0.02)


async def test_those_who_know_each_other_are_connected(net: Net) -> None:
    a, b = await net.friends(2)
    a.send(b, b"hello")
    await b.heard.until_frames(1)
    assert a.heard.of("up") == [("up", b.address, b.transport.incarnation)]
    assert b.heard.of("up") == [("up", a.address, a.transport.incarnation)]


async def test_a_stranger_is_not_admitted_and_hears_so(net: Net) -> None:
    a, b = await net.join(), await net.join()
    a.knows(b)
    a.send(b, b"hello")
    await a.heard.until(lambda: bool(a.heard.of("undelivered")))
    assert a.heard.losses == [NOT_ADMITTED]
    assert a.heard.of("lost") == [("lost", b.address, 0)]
    assert a.heard.of("undelivered") == [("undelivered", b.address, b"hello")]
    assert a.heard.of("up") == b.heard.of("up") == b.heard.of("lost") == b.heard.frames() == []


async def test_nobody_is_dialled_whose_key_is_not_known(net: Net) -> None:
    a, b = await net.join(), await net.join()
    b.knows(a)
    with pytest.raises(PeerUnreachable, match=b.key):
        a.send(b, b"hello")
    await asyncio.sleep(0.05)
    assert a.heard.events == b.heard.events == []


async def test_who_is_admitted_later_gets_in_then(net: Net) -> None:
    a, b = await net.join(), await net.join()
    a.knows(b)
    a.send(b, b"early")
    await a.heard.until(lambda: bool(a.heard.losses))
    b.knows(a)
    await _insist(a, b, b"late")
    await b.heard.until_frames(1)
    assert b.heard.frames() == [b"late"]


async def test_whoever_is_dismissed_is_lost_at_once_told_why_and_not_admitted_again(
    net: Net,
) -> None:
    a, b = await net.friends(2)
    a.send(b, b"hello")
    await b.heard.until_frames(1)
    b.transport.dismiss(a.key, "its access was revoked")
    assert b.heard.of("lost") == [("lost", a.address, a.transport.incarnation)]
    assert "its access was revoked" in b.heard.losses[0]
    await a.heard.until(lambda: bool(a.heard.losses))
    assert "its access was revoked" in a.heard.losses[0]
    await _insist(a, b, b"again")
    await a.heard.until(lambda: len(a.heard.losses) == 2)
    assert a.heard.losses[1] == NOT_ADMITTED
    assert b.heard.frames() == [b"hello"]
    assert len(b.heard.of("up")) == 1


async def test_dismissing_works_from_the_dialling_side_too(net: Net) -> None:
    a, b = await net.friends(2)
    a.send(b, b"hello")
    await b.heard.until_frames(1)
    a.transport.dismiss(b.key, "its access was revoked")
    assert a.heard.of("lost") == [("lost", b.address, b.transport.incarnation)]
    with pytest.raises(PeerUnreachable, match=b.key):
        a.send(b, b"again")
    await b.heard.until(lambda: bool(b.heard.losses))
    assert "its access was revoked" in b.heard.losses[0]
    await _insist(b, a, b"still there?")
    await b.heard.until(lambda: len(b.heard.losses) == 2)
    assert b.heard.losses[1] == NOT_ADMITTED
    assert a.heard.frames() == []


async def test_a_dismissal_concerns_nobody_else(net: Net) -> None:
    a, b, other = await net.friends(3)
    for one in (a, other):
        one.send(b, b"hello")
    await b.heard.until_frames(2)
    b.transport.dismiss(a.key, "revoked")
    b.transport.dismiss("a key that nobody has", "revoked")
    other.send(b, b"still here")
    await b.heard.until_frames(3)
    assert other.heard.of("lost") == []
    assert b.heard.of("lost") == [("lost", a.address, a.transport.incarnation)]


async def test_nothing_is_heard_of_whoever_is_dismissed_while_its_frames_are_handed_over(
    net: Net,
) -> None:
    a, b = await net.friends(2)
    a.send(b, b"hello")
    await b.heard.until_frames(1)
    hear = b.heard.frame_received

    def dismiss_at_last(address: str, frame: bytes) -> None:
        hear(address, frame)
        if frame == b"last":
            b.transport.dismiss(a.key, "revoked")

    b.heard.frame_received = dismiss_at_last  # type: ignore[method-assign]
    for frame in (b"first", b"last", b"after"):
        a.send(b, frame)
    await b.heard.until(lambda: bool(b.heard.of("lost")))
    await asyncio.sleep(0.05)
    assert b.heard.frames() == [b"hello", b"first", b"last"]


async def test_dismissing_whoever_is_being_dialled_gives_the_frames_back(net: Net) -> None:
    a = await net.join()
    a.transport.guests.admit(key_of(net.absent), "peer")
    a.transport.send(net.absent, b"hello")
    a.transport.dismiss(key_of(net.absent), "revoked")
    assert a.heard.events == [("lost", net.absent, 0), ("undelivered", net.absent, b"hello")]


async def test_a_key_that_is_only_forgotten_keeps_its_connections(net: Net) -> None:
    a, b = await net.friends(2)
    a.send(b, b"hello")
    await b.heard.until_frames(1)
    b.transport.guests.forget(a.key)
    a.send(b, b"still here")
    await b.heard.until_frames(2)
    assert b.heard.of("lost") == []


async def test_whoever_was_dismissed_may_be_admitted_again(net: Net) -> None:
    a, b = await net.friends(2)
    a.send(b, b"hello")
    await b.heard.until_frames(1)
    b.transport.dismiss(a.key, "revoked")
    b.knows(a)
    await _until_it_arrives(a, b, b"back")
    assert [event for event in b.heard.events if event[0] in ("up", "lost")] == [
        ("up", a.address, a.transport.incarnation),
        ("lost", a.address, a.transport.incarnation),
        ("up", a.address, a.transport.incarnation),
    ]
