"""Tell, ask, mailboxes and dead letters. Each test runs with local delivery, with the codec forced,
and over a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from runtime_kit import (
    Accountant,
    Bump,
    Cluster,
    Explode,
    Hold,
    Name,
    ReadLater,
    ReadTally,
    Tally,
    Unwanted,
    UrgentBump,
    WhoAsks,
    tally,
)

from spotlight.actors.runtime import Actor, ActorSystem, Done, Message, from_this_process, handles
from spotlight.errors import ActorDied, AskTimeout, MailboxFull, PeerUnreachable, RemoteError
from spotlight.transport.control import ActorRef

pytestmark = pytest.mark.virtual_time


class Pair:
    """Where an actor lives and from where it is addressed; the same process or two."""

    def __init__(self, cluster: Cluster, here: ActorSystem, there: ActorSystem) -> None:
        self.cluster = cluster
        self.here = here
        self.there = there


@pytest.fixture(params=["local", "codec", "network"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with Cluster(force_codec=request.param == "codec") as cluster:
        here = await cluster.system("here")
        there = await cluster.system("there") if request.param == "network" else here
        yield Pair(cluster, here, there)


async def test_tells_are_handled_in_the_order_they_were_sent(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    for amount in range(200):
        pair.here.tell(ref, Bump(amount))
    assert await tally(pair.here, ref) == tuple(range(200))


async def test_an_ask_returns_the_reply(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    assert await pair.here.ask(ref, ReadTally(), timeout_s=1.0) == Tally(())


async def test_an_ask_whose_handler_returns_nothing_is_answered_done(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    assert await pair.here.ask(ref, Bump(1), timeout_s=1.0) == Done()


async def test_a_task_may_answer_an_ask_while_others_are_handled(pair: Pair) -> None:
    accountant = Accountant()
    ref = await pair.there.spawn(lambda: accountant, "accountant")
    asking = asyncio.ensure_future(pair.here.ask(ref, ReadLater(), timeout_s=60.0))
    await accountant.holding.wait()
    await pair.here.ask(ref, Bump(1), timeout_s=1.0)
    assert await tally(pair.here, ref) == (1,)
    assert not asking.done()
    accountant.gate.set()
    assert await asking == Tally((1,))


async def test_a_future_may_answer_several_asks_at_once(pair: Pair) -> None:
    class Cashier(Actor):
        async def started(self) -> None:
            self.total: asyncio.Future[Tally] = asyncio.get_running_loop().create_future()

        @handles(ReadTally)
        async def on_read(self, message: ReadTally) -> asyncio.Future[Tally]:
            return self.total

        @handles(Bump)
        async def on_bump(self, message: Bump) -> None:
            self.total.set_result(Tally((message.amount,)))

    ref = await pair.there.spawn(Cashier, "cashier")
    asking = [asyncio.ensure_future(tally(pair.here, ref)) for _ in range(2)]
    await pair.here.ask(ref, Bump(1), timeout_s=5.0)
    assert await asyncio.gather(*asking) == [(1,), (1,)]


async def test_a_task_that_answers_and_raises_is_an_error_for_the_asker(pair: Pair) -> None:
    accountant = Accountant()
    accountant.gate.set()
    ref = await pair.there.spawn(lambda: accountant, "accountant")
    with pytest.raises(RemoteError, match="nothing to tell"):
        await pair.here.ask(ref, ReadLater(), timeout_s=1.0)
    assert await pair.there.wait_stopped(ref) == "crashed", "as with every task of an actor"


async def test_an_actor_that_ends_before_its_task_has_answered_is_actor_died(pair: Pair) -> None:
    accountant = Accountant()
    ref = await pair.there.spawn(lambda: accountant, "accountant")
    asking = asyncio.ensure_future(pair.here.ask(ref, ReadLater(), timeout_s=60.0))
    await accountant.holding.wait()
    await pair.there.stop(ref)
    with pytest.raises(ActorDied, match="ended before it answered"):
        await asking


async def test_a_tell_is_not_answered_by_a_task_either(pair: Pair) -> None:
    accountant = Accountant()
    accountant.gate.set()
    ref = await pair.there.spawn(lambda: accountant, "accountant")
    pair.here.tell(ref, Bump(1))
    pair.here.tell(ref, ReadLater())
    await accountant.holding.wait()
    assert await tally(pair.here, ref) == (1,)
    assert not len(pair.here.dead_letters)


async def test_a_handler_that_raises_on_an_ask_answers_remote_error_and_lives(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    with pytest.raises(RemoteError, match="boom") as caught:
        await pair.here.ask(ref, Explode("boom"), timeout_s=1.0)
    assert caught.value.type_name == "LookupError"
    assert "on_explode" in caught.value.remote_traceback
    assert await tally(pair.here, ref) == ()


async def test_an_ask_without_an_answer_in_time_is_ask_timeout(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    before = asyncio.get_running_loop().time()
    with pytest.raises(AskTimeout, match="accountant"):
        await pair.here.ask(ref, Hold(), timeout_s=3.0)
    assert asyncio.get_running_loop().time() - before == pytest.approx(3.0, abs=0.01)
    assert len(pair.here.asks) == 0


async def test_expired_work_is_dropped_by_the_receiver(pair: Pair) -> None:
    gate = asyncio.Event()
    ref = await pair.there.spawn(lambda: Accountant(gate), "accountant")
    pair.here.tell(ref, Hold())
    with pytest.raises(AskTimeout):
        await pair.here.ask(ref, Bump(7), timeout_s=1.0)
    await asyncio.sleep(0.1)
    gate.set()
    assert await tally(pair.here, ref) == ()
    assert pair.there.dead_letters.counts["expired"] == 1


async def test_a_reply_after_the_deadline_is_a_dead_letter_of_the_asker(pair: Pair) -> None:
    gate = asyncio.Event()
    ref = await pair.there.spawn(lambda: Accountant(gate), "accountant")
    with pytest.raises(AskTimeout):
        await pair.here.ask(ref, Hold(), timeout_s=1.0)
    gate.set()
    await tally(pair.here, ref)
    assert pair.here.dead_letters.counts["late_reply"] == 1


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


async def test_an_ask_to_an_ended_incarnation_fails_at_once(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    await pair.there.stop(ref)
    before = asyncio.get_running_loop().time()
    with pytest.raises(ActorDied, match="accountant"):
        await pair.here.ask(ref, ReadTally(), timeout_s=60.0)
    assert asyncio.get_running_loop().time() - before < 1.0


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


async def test_a_message_nobody_handles_is_a_dead_letter_and_an_error_for_an_asker(
    pair: Pair,
) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    pair.here.tell(ref, Unwanted())
    with pytest.raises(RemoteError, match="no handler of Unwanted"):
        await pair.here.ask(ref, Unwanted(), timeout_s=1.0)
    assert pair.there.dead_letters.counts["unhandled"] == 2


async def test_a_handler_of_a_base_type_handles_its_subtypes(pair: Pair) -> None:
    class Collector(Actor):
        @handles(Message)
        async def on_any(self, message: Message) -> Name:
            return Name(type(message).__name__)

    ref = await pair.there.spawn(Collector, "collector")
    assert await pair.here.ask(ref, Bump(1), timeout_s=1.0) == Name("Bump")


async def test_nobody_at_an_address_is_peer_unreachable() -> None:
    async with Cluster() as cluster:
        system = await cluster.system("alone")
        nobody = ActorRef("memory://nobody", "actor", 5)
        with pytest.raises(PeerUnreachable, match="nobody"):
            await system.ask(nobody, ReadTally(), timeout_s=60.0)
        with pytest.raises(PeerUnreachable, match="nobody"):
            system.tell(nobody, Bump(1))


async def test_tells_that_never_left_are_dead_letters() -> None:
    async with Cluster() as cluster:
        system = await cluster.system("alone")
        for amount in range(3):
            system.tell(ActorRef("memory://nobody", "actor", 5), Bump(amount))
        await asyncio.sleep(10.0)
        assert system.dead_letters.counts == {"unreachable": 3}


async def test_an_ask_fails_when_the_process_is_lost_before_it_answers() -> None:
    async with Cluster() as cluster:
        here = await cluster.system("here")
        there = await cluster.system("there")
        ref = await there.spawn(Accountant, "accountant")
        asking = asyncio.ensure_future(here.ask(ref, Hold(), timeout_s=60.0))
        await asyncio.sleep(0.1)
        await there.abort()
        with pytest.raises(PeerUnreachable, match="lost"):
            await asking


async def test_an_answer_to_the_process_that_was_here_before_answers_no_ask_of_this_one() -> None:
    async with Cluster() as cluster:
        before = await cluster.system("here")
        there = await cluster.system("there")
        old, new = Accountant(), Accountant()
        old_ref = await there.spawn(lambda: old, "old")
        new_ref = await there.spawn(lambda: new, "new")
        asking_before = asyncio.ensure_future(before.ask(old_ref, Hold(), timeout_s=60.0))
        await old.holding.wait()
        await before.abort()
        with pytest.raises(ActorDied):
            await asking_before
        here = await cluster.system("here")
        asking = asyncio.ensure_future(here.ask(new_ref, Hold(), timeout_s=60.0))
        await new.holding.wait()
        old.gate.set()
        await asyncio.sleep(1.0)
        assert not asking.done()
        assert here.dead_letters.counts == {"late_reply": 1}
        new.gate.set()
        assert await asking == Done()


async def test_cancelling_an_ask_leaves_nothing_pending(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    asking = asyncio.ensure_future(pair.here.ask(ref, Hold(), timeout_s=60.0))
    await asyncio.sleep(0.1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(pair.here.asks) == 0


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


async def test_the_dead_letter_ring_is_bounded_and_the_counters_are_not(pair: Pair) -> None:
    nobody = pair.here.well_known(pair.here.address, "nobody")
    for amount in range(1000):
        pair.here.tell(nobody, Bump(amount))
    assert pair.here.dead_letters.counts["no_such_actor"] == 1000
    assert len(list(pair.here.dead_letters)) == 256
    assert len(pair.here.dead_letters) == 1000


async def test_a_reply_that_cannot_be_encoded_is_an_error_for_the_asker() -> None:
    class Strange(Actor):
        @handles(ReadTally)
        async def on_read(self, message: ReadTally) -> Message:
            return Name(object())  # type: ignore[arg-type]

    async with Cluster() as cluster:
        here, there = await cluster.system("here"), await cluster.system("there")
        ref = await there.spawn(Strange, "strange")
        with pytest.raises(RemoteError, match="cannot be sent"):
            await here.ask(ref, ReadTally(), timeout_s=1.0)


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
    with pytest.raises(RemoteError, match=r"NotAllowed.*may not send Bump") as error:
        await pair.here.ask(ref, Bump(1), timeout_s=1.0)
    assert error.value.type_name == "NotAllowed"


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
