"""The attacks of `benchmarks.security`, as far as they can be tested without rights: there are
enough, their clients are what they say, and one that has an effect is found out."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import zmq

from benchmarks.security.__main__ import KINDS, load_attacks
from benchmarks.security.attack import STAGES, Succeeded, require, require_words
from benchmarks.security.clients import (
    greeting_of,
    hello_of,
    is_kept_out,
    line,
    person,
    raw_socket,
    stays_open,
)
from benchmarks.security.network import ATTACKER, COORDINATOR, Loopback
from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.users import GetStatus
from spotlight.transport.control import Guests, KeyPair, ZeroMQTransport
from spotlight.transport.control.wire import Refusal, Welcome
from tests.benchmarks.security_kit import Deaf

GUEST = KeyPair.new()


@pytest.fixture
async def place() -> AsyncIterator[ZeroMQTransport]:
    """A process with one guest."""
    guests = Guests({GUEST.public: "node"})
    transport = ZeroMQTransport(guests=guests, dialect=own_dialect())
    await transport.start(Deaf())
    yield transport
    await transport.aclose()


def test_every_kind_has_attacks_and_there_are_enough() -> None:
    attacks = load_attacks()
    kinds = Counter(each.kind for each in attacks)
    assert set(kinds) == set(KINDS)
    assert len(attacks) > 150
    assert len({(each.kind, each.name) for each in attacks}) == len(attacks)
    assert {each.stage for each in attacks} == set(STAGES)


def test_what_is_seen_of_an_attack_that_succeeds_is_told() -> None:
    require(True, "nothing")
    with pytest.raises(Succeeded, match="it ran"):
        require(False, "it ran")
    with pytest.raises(Succeeded, match="--join"):
        require_words("give it a token", "token", "--join")


@pytest.mark.parametrize(("keys", "comes_in"), [(GUEST, True), (KeyPair.new(), False)])
async def test_a_raw_socket_comes_in_by_the_keys_of_a_guest_alone(
    place: ZeroMQTransport, keys: KeyPair, comes_in: bool
) -> None:
    def attempt() -> bool:
        with raw_socket(place.address, keys) as dealer:
            return dealer.came_in()

    assert await asyncio.to_thread(attempt) == comes_in


async def test_a_raw_socket_hears_whether_its_greeting_was_believed(
    place: ZeroMQTransport,
) -> None:
    def attempt(address: str) -> list[object]:
        with raw_socket(place.address, GUEST) as dealer:
            assert dealer.came_in()
            dealer.say(hello_of(GUEST, address=address))
            return dealer.answers(1.0)

    believed = await asyncio.to_thread(attempt, "")
    assert [type(each) for each in believed] == [Welcome]
    other = f"tcp://127.0.0.1:1/{KeyPair.new().public}"
    refused = await asyncio.to_thread(attempt, other)
    assert [type(each) for each in refused] == [Refusal]


async def test_a_line_is_lost_when_its_key_is_dismissed(place: ZeroMQTransport) -> None:
    async with line(place.address, GUEST) as end:
        await asyncio.wait_for(end.up.wait(), 10)
        place.dismiss(GUEST.public, "shown out")
        await asyncio.wait_for(end.lost.wait(), 10)
        assert "shown out" in end.reason


async def test_who_is_kept_out_is_told_so_the_first_time_and_the_second(
    place: ZeroMQTransport,
) -> None:
    async with person(place.address, None) as stranger:
        for _ in range(2):
            assert is_kept_out(await stranger.refusal(GetStatus()))
    assert not is_kept_out("NotAllowed: not yours")
    assert not is_kept_out("PeerUnreachable: no connection in time")


async def test_a_raw_connection_is_seen_to_stay_or_to_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            assert await asyncio.to_thread(stays_open, near, 0.3)
            far.sendall(b"farewell")
            far.close()
            assert not await asyncio.to_thread(stays_open, near, 5.0)


def test_a_greeting_is_what_zeromq_says_itself() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        with socket.create_server(("127.0.0.1", 0)) as server:
            dealer.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
            connection, _ = server.accept()
            with connection:
                connection.sendall(greeting_of("NULL"))
                said = b""
                while len(said) < 64:
                    said += connection.recv(64 - len(said))
    ours = greeting_of("NULL")
    assert (said[0], said[9], said[10]) == (ours[0], ours[9], ours[10])
    assert said[12:] == ours[12:]


def test_on_loopback_nothing_is_claimed_that_was_not_tried() -> None:
    network = Loopback("no rights")
    assert not network.is_real
    assert "no rights" in network.kind
    assert network.nat
    assert network.command(COORDINATOR, ["true"]) == ["true"]
    assert network.host(COORDINATOR) == network.host(ATTACKER) == "127.0.0.1"
    with pytest.raises(NotImplementedError):
        network.open_ports(COORDINATOR)
