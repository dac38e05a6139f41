"""What every control transport must do, on both event loops."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from transport_kit import WITHIN_S, Recorder

from spotlight.errors import AddressInUse, FrameRejected, MailboxFull, PeerUnreachable
from spotlight.timings import ConnectionTimings
from spotlight.transport.control import (
    FRAME_LIMIT,
    ControlTransport,
    KeyPair,
    ZeroMQTransport,
    key_of,
)
from spotlight.transport.control.zeromq import ZeroMQSettings
from spotlight_simulation.memory_network import MemoryNetwork
from spotlight_simulation.open_door import Everybody

pytestmark = pytest.mark.both_loops

_NOBODY = KeyPair.derived(b"nobody").public


class Net:
    """Makes transports of one kind, and closes them."""

    def __init__(self, make: Callable[[str | None], ControlTransport]) -> None:
        self._make = make
        self.transports: list[ControlTransport] = []

    async def join(self, address: str | None = None) -> tuple[ControlTransport, Recorder]:
        """A started transport and its listener, at a given address if that matters."""
        transport, recorder = self._make(address), Recorder()
        await transport.start(recorder)
        self.transports.append(transport)
        return transport, recorder

    def nobody(self, number: int) -> str:
        """An address where nobody is."""
        in_memory = isinstance(self._make, _MemoryMaker)
        return f"memory://absent-{number}" if in_memory else f"tcp://127.0.0.1:{number}/{_NOBODY}"

    @property
    def absent(self) -> str:
        """Such an address."""
        return self.nobody(9)


TIMES = ConnectionTimings(
    handshake_timeout_s=0.3, connect_timeout_s=0.4, redial_after_s=5.0, longest_redial_s=20.0
)
DIALS: dict[str, Any] = {"times": TIMES, "dials_at_once": 3}


class _MemoryMaker:
    def __init__(self) -> None:
        self.network = MemoryNetwork(random.Random(0), outbox_limit=1000, **DIALS)
        self.count = 0

    def __call__(self, address: str | None) -> ControlTransport:
        self.count += 1
        name = address.removeprefix("memory://") if address else f"process-{self.count}"
        return self.network.transport(name, guests=Everybody())


class _ZeroMQMaker:
    def __init__(self) -> None:
        self._keys: dict[str, KeyPair] = {}

    def __call__(self, address: str | None) -> ControlTransport:
        keys = self._keys[key_of(address)] if address else KeyPair.new()
        self._keys[keys.public] = keys
        settings = ZeroMQSettings(outbox_frames=1000, **DIALS)
        bind = address or "tcp://127.0.0.1:0"
        return ZeroMQTransport(bind, keys=keys, guests=Everybody(), settings=settings)


@pytest.fixture(params=["memory", "zeromq"])
async def net(request: pytest.FixtureRequest) -> AsyncIterator[Net]:
    net = Net(_MemoryMaker() if request.param == "memory" else _ZeroMQMaker())
    yield net
    for transport in reversed(net.transports):
        await transport.aclose()


def numbered(count: int) -> list[bytes]:
    return [b"frame %d" % number for number in range(count)]


async def test_frames_arrive_in_order(net: Net) -> None:
    a, _ = await net.join()
    b, at_b = await net.join()
    frames = numbered(900)
    for frame in frames:
        a.send(b.address, frame)
    await at_b.until(lambda: len(at_b.frames()) == len(frames))
    assert at_b.frames() == frames


async def test_frames_arrive_in_order_while_others_come_back(net: Net) -> None:
    a, at_a = await net.join()
    b, at_b = await net.join()
    for start in range(0, 2000, 50):
        for number in range(start, start + 50):
            a.send(b.address, b"%d" % number)
            b.send(a.address, b"%d" % number)
        await asyncio.sleep(0.001)
    expected = [b"%d" % number for number in range(2000)]
    await at_b.until(lambda: len(at_b.frames()) == 2000)
    await at_a.until(lambda: len(at_a.frames()) == 2000)
    assert at_a.frames() == at_b.frames() == expected


async def test_a_frame_says_from_which_address_it_came(net: Net) -> None:
    a, at_a = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"hello")
    await at_b.until(lambda: bool(at_b.frames()))
    b.send(a.address, b"hello yourself")
    await at_a.until(lambda: bool(at_a.frames()))
    assert ("frame", a.address, b"hello") in at_b.events
    assert ("frame", b.address, b"hello yourself") in at_a.events


async def test_both_sides_hear_once_that_the_other_is_up(net: Net) -> None:
    a, at_a = await net.join()
    b, at_b = await net.join()
    for number in range(3):
        a.send(b.address, b"%d" % number)
        b.send(a.address, b"%d" % number)
    await at_a.until(lambda: len(at_a.frames()) == 3)
    await at_b.until(lambda: len(at_b.frames()) == 3)
    assert at_a.of("up") == [("up", b.address, b.incarnation)]
    assert at_b.of("up") == [("up", a.address, a.incarnation)]
    assert at_a.of("lost") == at_b.of("lost") == []


async def test_a_frame_may_hold_any_bytes_and_be_empty(net: Net) -> None:
    a, _ = await net.join()
    b, at_b = await net.join()
    frames = [b"", bytes(range(256)), b"\x00" * 5000, b"x"]
    for frame in frames:
        a.send(b.address, frame)
    await at_b.until(lambda: len(at_b.frames()) == len(frames))
    assert at_b.frames() == frames


async def test_the_largest_frame_arrives_and_a_larger_one_is_refused(net: Net) -> None:
    a, _ = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"x" * FRAME_LIMIT)
    with pytest.raises(FrameRejected, match="limit"):
        a.send(b.address, b"x" * (FRAME_LIMIT + 1))
    await at_b.until(lambda: len(at_b.frames()) == 1)
    assert len(at_b.frames()[0]) == FRAME_LIMIT


async def test_too_many_queued_frames_push_back(net: Net) -> None:
    a, _ = await net.join()
    b, at_b = await net.join()
    accepted = 0
    with pytest.raises(MailboxFull):
        for number in range(5000):
            a.send(b.address, b"%d" % number)
            accepted += 1
    assert accepted == 1000
    await at_b.until(lambda: len(at_b.frames()) == accepted)
    a.send(b.address, b"room again")
    await at_b.until(lambda: at_b.frames()[-1] == b"room again")


async def test_a_peer_that_closes_is_lost_once(net: Net) -> None:
    a, at_a = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"x")
    await at_b.until(lambda: bool(at_b.frames()))
    await b.aclose()
    await at_a.until(lambda: bool(at_a.of("lost")))
    await asyncio.sleep(0.05)
    assert at_a.of("lost") == [("lost", b.address, b.incarnation)]


async def test_the_accepting_side_loses_a_peer_that_closes_too(net: Net) -> None:
    a, _ = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"x")
    await at_b.until(lambda: bool(at_b.frames()))
    await a.aclose()
    await at_b.until(lambda: bool(at_b.of("lost")))
    assert at_b.of("lost") == [("lost", a.address, a.incarnation)]


async def test_an_aborted_peer_is_lost(net: Net) -> None:
    a, at_a = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"x")
    await at_b.until(lambda: bool(at_b.frames()))
    b.abort()
    await at_a.until(lambda: bool(at_a.of("lost")))


async def test_closing_sends_what_is_queued_first(net: Net) -> None:
    a, _ = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"first")
    await at_b.until(lambda: bool(at_b.frames()))
    frames = numbered(500)
    for frame in frames:
        a.send(b.address, frame)
    await a.aclose()
    await at_b.until(lambda: len(at_b.frames()) == 501)
    await at_b.until(lambda: bool(at_b.of("lost")))
    assert at_b.events[-1][0] == "lost"


async def test_after_closing_nothing_is_sent_and_nothing_is_called(net: Net) -> None:
    a, at_a = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"x")
    await at_b.until(lambda: bool(at_b.frames()))
    await a.aclose()
    await a.aclose()
    a.abort()
    before = list(at_a.events)
    with pytest.raises(PeerUnreachable):
        a.send(b.address, b"y")
    await at_b.until(lambda: bool(at_b.of("lost")))
    assert at_a.events == before


async def test_nobody_at_an_address_is_a_loss_and_gives_the_frames_back(net: Net) -> None:
    a, at_a = await net.join()
    a.send(net.absent, b"one")
    a.send(net.absent, b"two")
    await at_a.until(lambda: len(at_a.of("undelivered")) == 2)
    assert at_a.events == [
        ("lost", net.absent, 0),
        ("undelivered", net.absent, b"one"),
        ("undelivered", net.absent, b"two"),
    ]
    with pytest.raises(PeerUnreachable, match=re.escape(net.absent)):
        a.send(net.absent, b"three")


async def test_only_so_many_addresses_are_dialled_at_once(net: Net) -> None:
    a, at_a = await net.join()
    for number in range(3):
        a.send(net.nobody(number + 1), b"x")
    with pytest.raises(PeerUnreachable, match="3 other addresses are being dialled already"):
        a.send(net.nobody(4), b"x")
    a.send(net.nobody(1), b"y")  # it is being dialled
    await at_a.until(lambda: len(at_a.of("undelivered")) == 4)
    a.send(net.nobody(4), b"x")
    await at_a.until(lambda: len(at_a.of("undelivered")) == 5)


async def test_an_address_that_is_not_reached_is_not_dialled_again_for_a_while(net: Net) -> None:
    a, at_a = await net.join()
    a.send(net.absent, b"x")
    await at_a.until(lambda: bool(at_a.of("undelivered")))
    for _ in range(3):
        with pytest.raises(PeerUnreachable, match=f"{re.escape(net.absent)} .*; tried 1 times"):
            a.send(net.absent, b"x")
    assert at_a.of("lost") == [("lost", net.absent, 0)]


async def test_who_was_dialled_and_is_gone_does_not_count_as_being_dialled(net: Net) -> None:
    a, at_a = await net.join()
    for number in range(6):
        b, at_b = await net.join()
        a.send(b.address, b"x")
        await at_b.until(lambda at_b=at_b: bool(at_b.frames()))  # type: ignore[misc]
        b.abort()
        await at_a.until(lambda n=number: len(at_a.of("lost")) == n + 1)  # type: ignore[misc]


async def test_a_peer_that_starts_late_is_reached(net: Net) -> None:
    first, _ = await net.join()
    address = first.address
    await first.aclose()
    a, _ = await net.join()
    a.send(address, b"early")
    await asyncio.sleep(0.05)
    _, late = await net.join(address)
    await late.until(lambda: late.frames() == [b"early"])


async def test_a_process_that_comes_back_is_another_incarnation(net: Net) -> None:
    a, at_a = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"x")
    await at_b.until(lambda: bool(at_b.frames()))
    b.abort()
    await at_a.until(lambda: bool(at_a.of("lost")))
    again, at_again = await net.join(b.address)
    a.send(b.address, b"y")
    await at_again.until(lambda: at_again.frames() == [b"y"])
    assert again.incarnation != b.incarnation
    assert [event for event in at_a.events if event[0] in ("up", "lost")] == [
        ("up", b.address, b.incarnation),
        ("lost", b.address, b.incarnation),
        ("up", b.address, again.incarnation),
    ]


async def test_a_peer_that_is_cut_off_is_not_heard_any_more_and_told_why(net: Net) -> None:
    a, at_a = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"one")
    await at_b.until(lambda: bool(at_b.frames()))
    a.send(b.address, b"two")
    b.cut_off(a.address, "nonsense")
    assert at_b.of("lost") == [("lost", a.address, a.incarnation)]
    await at_a.until(lambda: bool(at_a.losses))
    assert at_a.losses == ["refused: cut off: nonsense"]
    a.send(b.address, b"three")
    await at_a.until(lambda: len(at_a.losses) == 2)
    assert at_a.losses[1] == "refused: cut off: nonsense"
    assert at_b.frames() == [b"one"]
    assert at_b.rejections()[-1] == "cut_off"


async def test_cutting_a_peer_off_works_from_the_dialling_side_too(net: Net) -> None:
    a, at_a = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"hello")
    await at_b.until(lambda: bool(at_b.frames()))
    b.send(a.address, b"garbage")
    await at_a.until(lambda: bool(at_a.frames()))
    a.cut_off(b.address, "nonsense")
    await at_b.until(lambda: bool(at_b.losses))
    assert at_b.losses == ["refused: cut off: nonsense"]
    assert at_a.losses == ["cut off: nonsense"]


async def test_cutting_a_peer_off_may_happen_while_its_frames_are_handed_over(net: Net) -> None:
    a, _ = await net.join()
    b, at_b = await net.join()
    a.send(b.address, b"hello")
    await at_b.until(lambda: bool(at_b.frames()))
    hear = at_b.frame_received

    def cut_off_at_bad(address: str, frame: bytes) -> None:
        hear(address, frame)
        if frame == b"bad":
            b.cut_off(address, "nonsense")

    at_b.frame_received = cut_off_at_bad  # type: ignore[method-assign]
    for frame in (b"good", b"bad", b"after"):
        a.send(b.address, frame)
    await at_b.until(lambda: bool(at_b.of("lost")))
    await asyncio.sleep(0.05)
    assert at_b.frames() == [b"hello", b"good", b"bad"]


async def test_a_cut_off_concerns_nobody_else_and_not_the_process_that_comes_after(
    net: Net,
) -> None:
    a, _ = await net.join()
    b, at_b = await net.join()
    other, at_other = await net.join()
    for transport in (a, other):
        transport.send(b.address, b"hello")
    await at_b.until_frames(2)
    b.cut_off(a.address, "nonsense")
    b.cut_off("nobody", "nonsense")
    a.abort()
    again, _ = await net.join(a.address)
    again.send(b.address, b"again")
    other.send(b.address, b"still here")
    await at_b.until_frames(4)
    assert at_other.of("lost") == []


async def test_an_address_in_use_is_named(net: Net) -> None:
    a, _ = await net.join()
    with pytest.raises(AddressInUse, match=a.address):
        await net.join(a.address)


async def test_a_process_does_not_reach_itself(net: Net) -> None:
    a, _ = await net.join()
    with pytest.raises(PeerUnreachable):
        a.send(a.address, b"x")


async def _send(transport: ControlTransport, address: str, frame: bytes) -> None:
    """As soon as there is room for another dial."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return transport.send(address, frame)
            except PeerUnreachable:
                await asyncio.sleep(0.01)


async def test_many_processes_reach_each_other(net: Net) -> None:
    members = [await net.join() for _ in range(6)]
    for transport, _ in members:
        for other, _ in members:
            if other is not transport:
                await _send(transport, other.address, transport.address.encode())
    for transport, recorder in members:
        expected = sorted(other.address.encode() for other, _ in members if other is not transport)
        await recorder.until_frames(len(expected))
        assert sorted(recorder.frames()) == expected
        assert len(recorder.of("up")) == len(expected)
        assert recorder.of("lost") == []
