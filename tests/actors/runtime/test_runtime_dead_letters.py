"""A message that reaches nobody, or that its sender may not send, is a counted dead letter."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from runtime_kit import Accountant, Bump, Cluster, Pair, Tally, Unwanted, tally

from spotlight.actors.runtime import Actor, Message, from_this_process, handles
from spotlight.errors import NotAllowed, RemoteError
from spotlight.transport.control import ActorRef

pytestmark = pytest.mark.virtual_time


async def test_a_tell_to_an_ended_incarnation_is_a_counted_dead_letter(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    await pair.there.stop(ref)
    successor = await pair.there.spawn(Accountant, "accountant")
    pair.here.tell(ref, Bump(1))
    await asyncio.sleep(0.1)
    assert await tally(pair.here, successor) == ()
    (letter,) = pair.there.dead_letters
    assert (letter.reason, letter.destination, letter.message_type) == (
        "dead_incarnation",
        ref,
        "Bump",
    )


async def test_a_message_nobody_handles_is_a_dead_letter_and_an_error_for_an_asker(
    pair: Pair,
) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    pair.here.tell(ref, Unwanted())
    with pytest.raises(RemoteError, match="no handler of Unwanted"):
        await pair.here.ask(ref, Unwanted(), timeout_s=1.0)
    assert pair.there.dead_letters.counts["unhandled"] == 2


async def test_only_what_no_end_of_a_process_explains_is_a_warning(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    with structlog.testing.capture_logs() as logs:
        pair.here.tell(ref, Unwanted())
        await asyncio.sleep(0.1)
        await pair.there.stop(ref)
        pair.here.tell(ref, Bump(1))
        await asyncio.sleep(0.1)
    told = [
        (line["reason"], line["log_level"])
        for line in logs
        if line["event"] == "message_not_handled"
    ]
    assert told == [("unhandled", "warning"), ("dead_incarnation", "info")]


async def test_tells_that_never_left_are_dead_letters() -> None:
    async with Cluster() as cluster:
        system = await cluster.system("alone")
        for amount in range(3):
            system.tell(ActorRef("memory://nobody", "actor", 5), Bump(amount))
        await asyncio.sleep(10.0)
        assert system.dead_letters.counts == {"unreachable": 3}


async def test_the_dead_letter_ring_is_bounded_and_the_counters_are_not(pair: Pair) -> None:
    nobody = pair.here.well_known(pair.here.address, "nobody")
    for amount in range(1000):
        pair.here.tell(nobody, Bump(amount))
    assert pair.here.dead_letters.counts["no_such_actor"] == 1000
    assert len(list(pair.here.dead_letters)) == 256
    assert len(pair.here.dead_letters) == 1000


class Vault(Actor):
    """Takes bumps of its owner only."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.total = 0

    def _from_owner(self, message: Message) -> bool:
        return self.sender is not None and self.sender.name == self.owner

    @handles(Bump, only=_from_owner)
    async def on_bump(self, message: Bump) -> Tally:
        self.total += message.amount
        return Tally((self.total,))


class OpenVault(Vault):
    """Takes bumps of everybody."""

    @handles(Bump)
    async def on_any_bump(self, message: Bump) -> Tally:
        self.total += message.amount
        return Tally((self.total,))


async def test_a_message_of_one_who_may_not_send_it_is_a_counted_dead_letter(pair: Pair) -> None:
    vault = Vault("owner")
    ref = await pair.there.spawn(lambda: vault, "vault")
    owner, thief = Accountant(), Accountant()
    await pair.here.spawn(lambda: owner, "owner")
    await pair.here.spawn(lambda: thief, "thief")
    owner.tell(ref, Bump(1))
    thief.tell(ref, Bump(100))
    pair.here.tell(ref, Bump(100))
    assert await owner.ask(ref, Bump(2), timeout_s=1.0) == Tally((3,))
    assert pair.there.dead_letters.counts["not_allowed"] == 2


async def test_an_ask_of_one_who_may_not_is_an_error_that_says_so(pair: Pair) -> None:
    ref = await pair.there.spawn(lambda: Vault("owner"), "vault")
    with pytest.raises(NotAllowed, match="may not send Bump"):
        await pair.here.ask(ref, Bump(1), timeout_s=1.0)


async def test_a_subclass_says_anew_who_may_send_what_it_handles(pair: Pair) -> None:
    ref = await pair.there.spawn(lambda: OpenVault("owner"), "vault")
    assert await pair.here.ask(ref, Bump(1), timeout_s=1.0) == Tally((1,))


async def test_what_only_this_process_may_say_is_refused_from_others() -> None:
    class Private(Accountant):
        @handles(Bump, only=from_this_process)
        async def on_bump(self, message: Bump) -> None:
            self.amounts.append(message.amount)

    async with Cluster() as cluster:
        here, there = await cluster.system("here"), await cluster.system("there")
        ref = await here.spawn(Private, "private")
        there.tell(ref, Bump(100))
        here.tell(ref, Bump(1))
        await asyncio.sleep(0.1)
        assert await tally(there, ref) == (1,)
