"""What becomes of a connection whose other end is frozen, with heartbeats and without, on every
control transport."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import psutil
import pytest
from transport_kit import Recorder, StallingProxy

from spotlight.timings import ConnectionTimings
from spotlight.transport.control import ControlTransport, ZeroMQSettings, ZeroMQTransport
from spotlight.transport.control.keys import place_of
from spotlight_simulation.memory_network import MemoryNetwork
from spotlight_simulation.open_door import Everybody

pytestmark = pytest.mark.both_loops

TIMES = ConnectionTimings(
    heartbeat_interval_s=0.1, heartbeat_timeout_s=0.4, connect_timeout_s=10.0, keepalive_s=7.0
)
LONGER_S = 1.5
"""Than any peer takes to miss heartbeats."""


class Pair:
    """Two transports, one of which dials the other."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def start(self, dialer: ControlTransport, acceptor: ControlTransport) -> None:
        """Start both, and connect them."""
        self.dialer, self.acceptor = dialer, acceptor
        self.at_dialer, self.at_acceptor = Recorder(), Recorder()
        for transport, listener in ((acceptor, self.at_acceptor), (dialer, self.at_dialer)):
            await transport.start(listener)
            self._stack.push_async_callback(transport.aclose)
        dialer.send(acceptor.address, b"hello")
        await self.at_acceptor.until_frames(1)

    async def make(self, *, dialer_beats: bool, acceptor_beats: bool) -> None:
        """Start both, with heartbeats or without."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Neither hears anything of the other."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Both hear each other again."""
        raise NotImplementedError


class MemoryPair(Pair):
    async def make(self, *, dialer_beats: bool, acceptor_beats: bool) -> None:
        self.network = MemoryNetwork(random.Random(0), times=TIMES)
        await self.start(
            self.network.transport("dialer", heartbeats=dialer_beats, guests=Everybody()),
            self.network.transport("acceptor", heartbeats=acceptor_beats, guests=Everybody()),
        )

    def freeze(self) -> None:
        self.network.pause(self.acceptor.address)

    def go_on(self) -> None:
        self.network.resume(self.acceptor.address)


class ZeroMQPair(Pair):
    async def make(self, *, dialer_beats: bool, acceptor_beats: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        self.proxy = await self._stack.enter_async_context(StallingProxy(port))
        await self.start(
            ZeroMQTransport(
                guests=Everybody(), settings=ZeroMQSettings(TIMES, heartbeats=dialer_beats)
            ),
            ZeroMQTransport(
                f"tcp://127.0.0.1:{port}",
                guests=Everybody(),
                advertise=f"tcp://127.0.0.1:{self.proxy.port}",
                settings=ZeroMQSettings(TIMES, heartbeats=acceptor_beats),
            ),
        )

    def freeze(self) -> None:
        self.proxy.stall()

    def go_on(self) -> None:
        self.proxy.go_on()


@pytest.fixture(params=[MemoryPair, ZeroMQPair], ids=["memory", "zeromq"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        yield request.param(stack)


@pytest.mark.parametrize("acceptor_beats", [True, False])
async def test_the_heartbeats_of_the_dialer_end_the_connection_on_both_sides(
    pair: Pair, acceptor_beats: bool
) -> None:
    await pair.make(dialer_beats=True, acceptor_beats=acceptor_beats)
    pair.freeze()
    await pair.at_dialer.until(lambda: bool(pair.at_dialer.of("lost")))
    await pair.at_acceptor.until(lambda: bool(pair.at_acceptor.of("lost")))


@pytest.mark.parametrize("acceptor_beats", [True, False])
async def test_without_heartbeats_what_is_sent_to_a_frozen_peer_waits_for_it(
    pair: Pair, acceptor_beats: bool
) -> None:
    await pair.make(dialer_beats=False, acceptor_beats=acceptor_beats)
    pair.freeze()
    pair.dialer.send(pair.acceptor.address, b"one")
    pair.acceptor.send(pair.dialer.address, b"two")
    await asyncio.sleep(LONGER_S)
    assert pair.at_acceptor.frames() == [b"hello"]
    pair.go_on()
    await pair.at_acceptor.until(lambda: pair.at_acceptor.frames() == [b"hello", b"one"])
    await pair.at_dialer.until(lambda: pair.at_dialer.frames() == [b"two"])
    assert pair.at_dialer.of("lost") == pair.at_acceptor.of("lost") == []


@pytest.mark.parametrize("beats", [True, False])
async def test_the_system_is_to_notice_a_machine_that_is_gone_on_every_connection(
    beats: bool,
) -> None:
    async with AsyncExitStack() as stack:
        pair = ZeroMQPair(stack)
        settings = ZeroMQSettings(TIMES, heartbeats=beats)
        await pair.start(
            ZeroMQTransport(guests=Everybody(), settings=settings),
            ZeroMQTransport(guests=Everybody(), settings=settings),
        )
        port = int(place_of(pair.acceptor.address).rpartition(":")[2])
        ends = [
            connection.fd
            for connection in psutil.Process().net_connections("tcp")
            if connection.raddr and port in (connection.laddr.port, connection.raddr.port)
        ]
        assert len(ends) == 2
        for end in ends:
            with socket.socket(fileno=os.dup(end)) as tcp:
                assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 7
                assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 400


async def test_a_peer_that_falls_silent_between_a_message_and_its_next_ping_is_missed(
    pair: Pair,
) -> None:
    await pair.make(dialer_beats=True, acceptor_beats=False)
    await asyncio.sleep(3 * TIMES.heartbeat_interval_s)
    pair.dialer.send(pair.acceptor.address, b"last words")
    await pair.at_acceptor.until_frames(2)
    pair.freeze()
    await pair.at_acceptor.until(lambda: bool(pair.at_acceptor.of("lost")))


@pytest.mark.parametrize("dialer_beats", [True, False])
async def test_an_idle_connection_stays_up(pair: Pair, dialer_beats: bool) -> None:
    await pair.make(dialer_beats=dialer_beats, acceptor_beats=True)
    await asyncio.sleep(LONGER_S)
    assert pair.at_dialer.of("lost") == pair.at_acceptor.of("lost") == []
