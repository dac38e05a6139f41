"""Who may stay at a bound port, and who goes when there are too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from spotlight.timings import ConnectionTimings
from spotlight.transport.control.pending_connections import PendingConnections, TurnedAway
from spotlight.transport.control.tcp import Connections

pytestmark = pytest.mark.virtual_time


class FakeConnections(Connections):
    """Remembers which were ended."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def shut_down(self, descriptor: int) -> None:
        self.ended.append(descriptor)


class Port:
    """A doorway of eight places, four of them for strangers."""

    def __init__(self) -> None:
        self.connections = FakeConnections()
        self.away: list[tuple[int, TurnedAway]] = []
        self.doorway = PendingConnections(
            self.connections,
            limit=8,
            strangers=4,
            times=ConnectionTimings(connect_timeout_s=3.0, silence_s=30.0),
            drain=lambda: None,
            turned_away=lambda descriptor, reason, text: self.away.append((descriptor, reason)),
        )

    async def let_in(self, *descriptors: int) -> None:
        """Peers of ours come, one after the other."""
        for descriptor in descriptors:
            self.doorway.arrived(descriptor)
            self.doorway.greeted(descriptor)
            self.doorway.heard(descriptor)
            await asyncio.sleep(0.01)


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    yield made
    made.doorway.close()


async def test_who_does_not_greet_goes_soon(port: Port) -> None:
    port.doorway.arrived(1)
    await asyncio.sleep(2.9)
    assert port.away == []
    await asyncio.sleep(0.2)
    assert port.away == [(1, "no_greeting")]
    assert port.connections.ended == [1]


async def test_who_greets_and_says_nothing_goes_later_and_is_to_be_told(port: Port) -> None:
    port.doorway.arrived(1)
    port.doorway.greeted(1)
    await asyncio.sleep(29.9)
    assert port.away == []
    await asyncio.sleep(0.2)
    assert port.away == [(1, "silent")]
    assert port.connections.ended == []
    port.doorway.show_out(1)
    await asyncio.sleep(1.0)
    assert port.connections.ended == [1]


async def test_who_has_said_something_may_be_silent_for_ever(port: Port) -> None:
    await port.let_in(1)
    await asyncio.sleep(1e6)
    assert port.away == []
    assert len(port.doorway) == 1


async def test_beyond_the_bound_of_strangers_the_oldest_goes(port: Port) -> None:
    await port.let_in(1)
    for descriptor in range(2, 8):
        port.doorway.arrived(descriptor)
    port.doorway.greeted(2)
    await asyncio.sleep(0)
    assert port.away == [(2, "too_many_waiting"), (3, "too_many_waiting")]
    assert len(port.doorway) == 5


async def test_without_room_the_peer_goes_that_was_silent_for_the_longest_time(port: Port) -> None:
    await port.let_in(1, 2, 3, 4, 5, 6, 7, 8)
    await asyncio.sleep(100.0)
    port.doorway.heard(1)
    await port.let_in(9, 10)
    assert port.away == [(2, "no_room"), (3, "no_room")]


async def test_peers_that_were_heard_lately_keep_their_places(port: Port) -> None:
    await port.let_in(1, 2, 3, 4, 5, 6, 7, 8)
    await asyncio.sleep(10.0)
    port.doorway.arrived(9)
    await asyncio.sleep(0)
    assert port.away == [(9, "no_room")]


async def test_those_who_are_leaving_already_make_room_first(port: Port) -> None:
    await port.let_in(1, 2, 3, 4, 5, 6, 7, 8)
    port.doorway.show_out(3)
    await port.let_in(9)
    assert port.away == []
    assert port.connections.ended == [3]


async def test_a_descriptor_that_is_used_again_begins_anew(port: Port) -> None:
    await port.let_in(1)
    port.doorway.arrived(1)
    assert port.doorway.may_greet(1)
    await asyncio.sleep(3.1)
    assert port.away == [(1, "no_greeting")]
