"""How many connections there may be at a bound port, and who goes when there are too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from spotlight.transport.control.open_connections import OpenConnections
from spotlight.transport.control.tcp import Connections

pytestmark = pytest.mark.virtual_time


class FakeConnections(Connections):
    """Remembers which were ended."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def shut_down(self, descriptor: int) -> None:
        self.ended.append(descriptor)


class Port:
    """A doorway of four places."""

    def __init__(self) -> None:
        self.connections = FakeConnections()
        self.away: list[int] = []
        self.doorway = OpenConnections(
            self.connections,
            limit=4,
            farewell_s=0.2,
            owner=self,
        )

    def drain(self) -> None:
        """All that has arrived is read at once."""

    def turned_away(self, descriptor: int) -> None:
        self.away.append(descriptor)

    def let_in(self, *descriptors: int) -> None:
        """Guests come, one after the other."""
        for descriptor in descriptors:
            self.doorway.arrived(descriptor)
            self.doorway.heard(descriptor)


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    yield made
    made.doorway.close()


async def test_whoever_waits_longest_goes_before_any_guest(port: Port) -> None:
    port.let_in(1, 2)
    for stranger in (3, 4, 5, 6):
        port.doorway.arrived(stranger)
    await asyncio.sleep(0)
    assert port.away == [3, 4]
    assert port.connections.ended == [3, 4]


async def test_the_guest_that_was_silent_for_longest_goes_for_others(port: Port) -> None:
    port.let_in(1, 2, 3, 4)
    port.doorway.heard(1)
    port.let_in(5)
    await asyncio.sleep(0)
    assert port.away == [2]


async def test_a_newcomer_is_not_sent_away_for_silent_guests(port: Port) -> None:
    port.let_in(1, 2, 3, 4)
    port.doorway.arrived(5)
    await asyncio.sleep(0)
    assert port.away == [1]


async def test_those_who_are_leaving_go_first(port: Port) -> None:
    port.let_in(1, 2, 3, 4)
    port.doorway.show_out(4)
    port.let_in(5)
    await asyncio.sleep(0)
    assert port.away == [4]
    assert not port.doorway.is_leaving(4)


async def test_a_guest_may_be_silent_while_there_is_room(port: Port) -> None:
    port.let_in(1, 2, 3, 4)
    await asyncio.sleep(86_400)
    assert port.away == []
    assert len(port.doorway) == 4


async def test_who_is_shown_out_has_a_moment_to_hear_why(port: Port) -> None:
    port.let_in(1)
    port.doorway.show_out(1)
    await asyncio.sleep(0.1)
    assert port.doorway.is_leaving(1)
    assert port.connections.ended == []
    await asyncio.sleep(0.2)
    assert port.connections.ended == [1]
    assert len(port.doorway) == 0


async def test_a_connection_that_ends_by_itself_is_not_ended_again(port: Port) -> None:
    port.let_in(1)
    port.doorway.show_out(1)
    port.doorway.gone(1)
    await asyncio.sleep(1.0)
    assert port.connections.ended == []


async def test_only_a_connection_that_brought_nothing_ended_without_a_word(port: Port) -> None:
    port.doorway.arrived(1)
    assert port.doorway.gone(1)
    port.let_in(2)
    assert not port.doorway.gone(2)
    assert not port.doorway.gone(3)


async def test_a_descriptor_that_is_used_again_is_another_connection(port: Port) -> None:
    port.let_in(1)
    port.doorway.show_out(1)
    port.doorway.arrived(1)
    assert not port.doorway.is_leaving(1)
    await asyncio.sleep(1.0)
    assert port.connections.ended == []
    assert len(port.doorway) == 1


async def test_closing_ends_nothing_later(port: Port) -> None:
    port.let_in(1)
    port.doorway.show_out(1)
    port.doorway.close()
    await asyncio.sleep(1.0)
    assert port.connections.ended == []
