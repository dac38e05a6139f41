"""Which handler a message comes to, in which order, and how a full mailbox pushes back."""

from __future__ import annotations

import asyncio

import pytest
from runtime_kit import (
    Accountant,
    Bump,
    Cluster,
    Hold,
    Name,
    Pair,
    ReadTally,
    UrgentBump,
    WhoAsks,
    tally,
)

from spotlight.actors.runtime import Actor, Message, handles
from spotlight.errors import ActorDied, MailboxFull

pytestmark = pytest.mark.virtual_time


async def test_tells_are_handled_in_the_order_they_were_sent(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    for amount in range(200):
        pair.here.tell(ref, Bump(amount))
    assert await tally(pair.here, ref) == tuple(range(200))


async def test_system_messages_overtake_ordinary_ones(pair: Pair) -> None:
    gate = asyncio.Event()
    ref = await pair.there.spawn(lambda: Accountant(gate), "accountant")
    pair.here.tell(ref, Hold())
    await asyncio.sleep(0.1)
    for amount in (1, 2, 3):
        pair.here.tell(ref, Bump(amount))
    pair.here.tell(ref, UrgentBump(99))
    await asyncio.sleep(0.1)
    gate.set()
    assert await tally(pair.here, ref) == (99, 1, 2, 3)


async def test_a_full_mailbox_pushes_back_on_an_ask(pair: Pair) -> None:
    gate = asyncio.Event()
    ref = await pair.there.spawn(lambda: Accountant(gate), "accountant", mailbox=2)
    pair.here.tell(ref, Hold())
    await asyncio.sleep(0.1)
    pair.here.tell(ref, Bump(1))
    pair.here.tell(ref, Bump(2))
    with pytest.raises(MailboxFull):
        await pair.here.ask(ref, Bump(3), timeout_s=1.0)
    gate.set()
    await asyncio.sleep(0.1)
    assert await tally(pair.here, ref) == (1, 2)


async def test_a_full_mailbox_pushes_back_on_a_tell(pair: Pair) -> None:
    gate = asyncio.Event()
    ref = await pair.there.spawn(lambda: Accountant(gate), "accountant", mailbox=2)
    pair.here.tell(ref, Hold())
    await asyncio.sleep(0.1)
    with pytest.raises(MailboxFull, match="accountant"):
        for amount in range(10):
            pair.here.tell(ref, Bump(amount))
            await asyncio.sleep(0.01)  # the push-back of another process needs a round trip
    gate.set()
    await asyncio.sleep(0.1)
    assert await tally(pair.here, ref) == (0, 1)
    assert pair.there.cells["accountant"].mailbox.greatest == 2


async def test_after_a_push_back_tells_go_through_again(pair: Pair) -> None:
    gate = asyncio.Event()
    ref = await pair.there.spawn(lambda: Accountant(gate), "accountant", mailbox=2)
    pair.here.tell(ref, Hold())
    await asyncio.sleep(0.1)
    with pytest.raises(MailboxFull):
        for amount in range(10):
            pair.here.tell(ref, Bump(amount))
            await asyncio.sleep(0.01)
    gate.set()
    await asyncio.sleep(1.0)
    pair.here.tell(ref, Bump(77))
    assert (await tally(pair.here, ref))[-1] == 77


async def test_the_sender_of_a_message_is_known_to_its_handler(pair: Pair) -> None:
    class Asker(Actor):
        @handles(ReadTally)
        async def on_read(self, message: ReadTally) -> Message:
            return await self.ask(accountant, WhoAsks(), timeout_s=1.0)

    accountant = await pair.there.spawn(Accountant, "accountant")
    asker = await pair.here.spawn(Asker, "asker")
    assert await pair.here.ask(asker, ReadTally(), timeout_s=1.0) == Name("asker")
    assert await pair.here.ask(accountant, WhoAsks(), timeout_s=1.0) == Name("nobody")


async def test_a_well_known_reference_reaches_whichever_incarnation_is_there(pair: Pair) -> None:
    well_known = pair.here.well_known(pair.there.address, "accountant")
    with pytest.raises(ActorDied):
        await pair.here.ask(well_known, ReadTally(), timeout_s=1.0)
    first = await pair.there.spawn(Accountant, "accountant")
    pair.here.tell(well_known, Bump(1))
    assert await tally(pair.here, well_known) == (1,)
    await pair.there.stop(first)
    await pair.there.spawn(Accountant, "accountant")
    assert await tally(pair.here, well_known) == ()


async def test_a_handler_of_a_base_type_handles_its_subtypes(pair: Pair) -> None:
    class Collector(Actor):
        @handles(Message)
        async def on_any(self, message: Message) -> Name:
            return Name(type(message).__name__)

    ref = await pair.there.spawn(Collector, "collector")
    assert await pair.here.ask(ref, Bump(1), timeout_s=1.0) == Name("Bump")


async def test_a_call_has_its_turn_after_what_waits_and_never_within_a_handler(
    pair: Pair,
) -> None:
    accountant = Accountant()
    ref = await pair.there.spawn(lambda: accountant, "accountant")
    seen: list[tuple[int, ...]] = []

    async def look() -> None:
        seen.append(tuple(accountant.amounts))

    pair.there.tell(ref, Hold())
    pair.there.tell(ref, Bump(1))
    await accountant.holding.wait()
    accountant.call_in_turn(look)
    pair.there.tell(ref, Bump(2))
    await asyncio.sleep(0.1)
    assert seen == []
    accountant.gate.set()
    await asyncio.sleep(0.1)
    assert (seen, accountant.amounts) == ([(1,)], [1, 2])


async def test_a_call_of_the_system_lane_overtakes_ordinary_messages(pair: Pair) -> None:
    accountant = Accountant()
    ref = await pair.there.spawn(lambda: accountant, "accountant")
    seen: list[tuple[int, ...]] = []

    async def look() -> None:
        seen.append(tuple(accountant.amounts))

    pair.there.tell(ref, Hold())
    pair.there.tell(ref, Bump(1))
    await accountant.holding.wait()
    accountant.call_in_turn(look, lane="system")
    accountant.gate.set()
    await asyncio.sleep(0.1)
    assert (seen, accountant.amounts) == ([()], [1])


async def test_a_call_that_raises_crashes_its_actor(pair: Pair) -> None:
    accountant = Accountant()
    ref = await pair.there.spawn(lambda: accountant, "accountant")

    async def explode() -> None:
        raise LookupError("no")

    accountant.call_in_turn(explode)
    await pair.there.wait_stopped(ref)
    assert accountant.stopped_because == "crashed"


async def test_a_busy_actor_lets_others_run() -> None:
    async with Cluster() as cluster:
        system = await cluster.system("here")
        busy = await system.spawn(Accountant, "busy", mailbox=5000)
        other = await system.spawn(Accountant, "other")
        for amount in range(4000):
            system.tell(busy, Bump(amount))
        assert await tally(system, other) == ()
        assert len(system.cells["busy"].mailbox) > 0


def test_two_handlers_of_one_type_are_an_error() -> None:
    with pytest.raises(TypeError, match="two handlers of Bump"):

        class Confused(Actor):
            @handles(Bump)
            async def one(self, message: Bump) -> None: ...

            @handles(Bump)
            async def two(self, message: Bump) -> None: ...


def test_a_handler_that_is_not_async_is_an_error() -> None:
    with pytest.raises(TypeError, match="async def"):

        @handles(Bump)  # type: ignore[arg-type]
        def handler(self: Actor, message: Bump) -> None: ...
