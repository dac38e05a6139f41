"""An ask is answered, or fails in time and says why."""

from __future__ import annotations

import asyncio

import pytest
from runtime_kit import (
    Accountant,
    Bump,
    Cluster,
    Explode,
    Hold,
    Name,
    Pair,
    ReadLater,
    ReadTally,
    Tally,
    tally,
)

from spotlight.actors.runtime import Actor, Done, Message, handles
from spotlight.errors import ActorDied, AskTimeout, PeerUnreachable, RemoteError
from spotlight.transport.control import ActorRef

pytestmark = pytest.mark.virtual_time


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


async def test_an_ask_to_an_ended_incarnation_fails_at_once(pair: Pair) -> None:
    ref = await pair.there.spawn(Accountant, "accountant")
    await pair.there.stop(ref)
    before = asyncio.get_running_loop().time()
    with pytest.raises(ActorDied, match="accountant"):
        await pair.here.ask(ref, ReadTally(), timeout_s=60.0)
    assert asyncio.get_running_loop().time() - before < 1.0


async def test_nobody_at_an_address_is_peer_unreachable() -> None:
    async with Cluster() as cluster:
        system = await cluster.system("alone")
        nobody = ActorRef("memory://nobody", "actor", 5)
        with pytest.raises(PeerUnreachable, match="nobody"):
            await system.ask(nobody, ReadTally(), timeout_s=60.0)
        with pytest.raises(PeerUnreachable, match="nobody"):
            system.tell(nobody, Bump(1))


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
