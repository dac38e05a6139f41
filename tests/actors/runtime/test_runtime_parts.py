"""The parts of the runtime by themselves."""

from __future__ import annotations

import asyncio
import random

import msgpack
import msgspec
import pytest
import structlog
from runtime_kit import (
    Accountant,
    Bump,
    Cluster,
    Hold,
    ReadTally,
    Tally,
    UrgentBump,
    Watcher,
)

from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import ActorRef, ActorSystem, Done, Down, loop
from spotlight.actors.runtime.dead_letters import DeadLetter, DeadLetters
from spotlight.actors.runtime.envelopes import Ended, PushedBack, Unwatch, Watch
from spotlight.actors.runtime.log_limiter import LimitedLog, LogLimiter
from spotlight.actors.runtime.mailbox import Delivery, Mailbox
from spotlight.actors.runtime.reply_cache import RUNNING, ReplyCache
from spotlight.errors import (
    AddressInUse,
    AskTimeout,
    MissingDependency,
    PeerUnreachable,
    UserError,
)
from spotlight.transport.control import (
    Dialect,
    Envelope,
    Kind,
    Message,
    ZeroMQTransport,
    encode_envelope,
    encode_message,
    key_of,
)
from spotlight_simulation.memory_connection import MemoryConnection
from spotlight_simulation.memory_network import MemoryNetwork, MemoryTransport
from spotlight_simulation.open_door import ANYBODY_SAYS_ANYTHING, Everybody

SOMEBODY = ActorRef("memory://x", "somebody", 1)


def delivery(message: Message) -> Delivery:
    return Delivery(message, SOMEBODY, Kind.TELL, 0, None)


# --- mailbox --------------------------------------------------------------------------


def test_a_mailbox_takes_system_messages_first_and_each_lane_in_order() -> None:
    mailbox = Mailbox(10)
    for message in (Bump(1), UrgentBump(2), Bump(3), UrgentBump(4)):
        assert mailbox.offer(delivery(message))
    taken = [mailbox.take() for _ in range(5)]
    amounts = [t.message.amount if t is not None else None for t in taken]  # type: ignore[attr-defined]
    assert amounts == [2, 4, 1, 3, None]


def test_a_full_mailbox_refuses_and_keeps_what_it_has() -> None:
    mailbox = Mailbox(2)
    assert [mailbox.offer(delivery(Bump(n))) for n in range(3)] == [True, True, False]
    assert [mailbox.offer(delivery(UrgentBump(n))) for n in range(3)] == [True, True, False]
    mailbox.force(delivery(UrgentBump(9)))
    assert len(mailbox) == mailbox.greatest == 5
    assert len(mailbox.drain()) == 5
    assert len(mailbox) == 0


async def test_waiting_for_a_mailbox_ends_when_something_arrives() -> None:
    mailbox = Mailbox(2)
    waiting = asyncio.ensure_future(mailbox.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    mailbox.offer(delivery(Bump(1)))
    mailbox.offer(delivery(Bump(2)))
    await waiting
    await mailbox.wait()  # nothing to wait for


def test_a_mailbox_without_room_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Mailbox(0)


# --- replies --------------------------------------------------------------------------


def test_the_reply_cache_tells_running_asks_from_answered_and_unknown_ones() -> None:
    cache = ReplyCache(capacity=2, greatest_frame=10)
    one, two, three = (("memory://x", 1, number) for number in (1, 2, 3))
    assert cache.lookup(one) is None
    cache.begin(one)
    assert cache.lookup(one) is RUNNING
    cache.finish(one, b"answer")
    assert cache.lookup(one) == b"answer"
    cache.begin(two)
    cache.begin(three)
    assert cache.lookup(one) is None  # the oldest is forgotten


def test_the_reply_cache_keeps_no_large_answers() -> None:
    cache = ReplyCache(capacity=2, greatest_frame=10)
    key = ("memory://x", 1, 1)
    cache.begin(key)
    cache.finish(key, b"x" * 11)
    assert cache.lookup(key) is None


# --- logs and dead letters ------------------------------------------------------------


def test_alike_log_lines_are_written_once_an_interval_with_the_number_left_out() -> None:
    limiter = LogLimiter(interval_s=1.0)
    times = (0.0, 0.1, 0.9, 1.0, 1.5, 2.5)
    assert [limiter.admit("a", now) for now in times] == [0, None, None, 2, None, 1]
    assert limiter.admit("b", 0.5) == 0


def test_of_many_keys_all_that_find_no_room_are_one() -> None:
    limiter = LogLimiter(interval_s=10.0)
    admitted = [limiter.admit(f"name-{number}", 0.0) for number in range(5000)]
    assert 1000 < admitted.count(0) < 1100, "a log is not filled by ever other names"
    assert limiter.admit("another", 1.0) is None
    left_out = limiter.admit("another", 20.0)
    assert left_out == 0, "there is room again"
    assert limiter.admit("name-1", 20.0) == 0


async def test_a_limited_log_tells_of_each_event_and_subject_once_in_a_while() -> None:
    log = LimitedLog(structlog.get_logger("test"), interval_s=60.0)
    with structlog.testing.capture_logs() as logs:
        for about in ("a", "a", "b", "a"):
            log.warning("refused", about=about, node=about)
        assert log.info("lost", about="a", node="a")
        assert not log.info("lost", about="a", node="a")
    assert [(line["event"], line["node"], line["log_level"]) for line in logs] == [
        ("refused", "a", "warning"),
        ("refused", "b", "warning"),
        ("lost", "a", "info"),
    ]


async def test_dead_letters_are_counted_by_reason() -> None:
    letters = DeadLetters(kept=2)
    for reason in ("expired", "expired", "unhandled"):
        letters.add(DeadLetter(reason, SOMEBODY, SOMEBODY, "Bump"))  # type: ignore[arg-type]
    assert letters.counts == {"expired": 2, "unhandled": 1}
    assert [letter.reason for letter in letters] == ["expired", "unhandled"]
    assert len(letters) == 3


# --- the system -----------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_frames_are_counted_and_mailboxes_know_how_full_they_were() -> None:
    async with Cluster() as cluster:
        here, there = await cluster.system("here"), await cluster.system("there")
        ref = await there.spawn(Accountant, "accountant", mailbox=7)
        await here.ask(ref, ReadTally(), timeout_s=1.0)
        assert here.post.frames_sent == there.post.frames_received == 1
        mailbox = there.cells["accountant"].mailbox
        assert (len(mailbox), mailbox.greatest, mailbox.capacity) == (0, 1, 7)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "malformed"),
        (b"garbage", "wrong_type"),
        (b"\x90", "wrong_type"),
        (b"\xc1", "malformed"),
        (b"\x99" + b"\x01" * 9, "wrong_type"),
    ],
)
async def test_a_frame_that_makes_no_sense_is_counted_and_costs_its_sender_the_connection(
    frame: bytes, reason: str
) -> None:
    async with Cluster() as cluster:
        here, bad = await cluster.system("here"), await cluster.system("bad")
        there = await cluster.system("there")
        ref = await there.spawn(Accountant, "accountant")
        await here.ask(ref, ReadTally(), timeout_s=1.0)
        await bad.ask(ref, ReadTally(), timeout_s=1.0)
        bad.post.transport.send(there.address, frame)
        with pytest.raises(PeerUnreachable, match="cut off"):
            await bad.ask(ref, ReadTally(), timeout_s=1.0)
        await here.ask(ref, ReadTally(), timeout_s=1.0)
        assert there.post.frames_rejected == {reason: 1}


class Listener:
    """A process without actors that keeps the frames it gets."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.losses: list[str] = []

    def frame_received(self, address: str, frame: bytes) -> None:
        self.frames.append(frame)

    def frame_undelivered(self, address: str, frame: bytes) -> None: ...
    def peer_up(self, address: str, incarnation: int) -> None: ...
    def other_version(self, address: str, dialect: Dialect) -> None: ...
    def input_rejected(self, address: str, reason: str, detail: str) -> None: ...

    def peer_lost(self, address: str, incarnation: int, reason: str) -> None:
        self.losses.append(reason)


@pytest.mark.virtual_time
async def test_whoever_asks_what_cannot_be_decoded_is_told_the_reason() -> None:
    async with Cluster() as cluster:
        system = await cluster.system("there")
        ref = await system.spawn(Accountant, "accountant")
        foreign, listener = cluster.network.transport("foreign", guests=Everybody()), Listener()
        await foreign.start(listener)
        asker = ActorRef(foreign.address, "asker", 7)
        body = msgspec.Raw(msgpack.packb({"type": "Bump", "amount": "many"}))
        foreign.send(
            system.address,
            encode_envelope(Envelope(1, asker, ref, Kind.ASK, 1, 55, 10.0, "ordinary", body)),
        )
        await asyncio.sleep(1.0)
        (reason,) = listener.losses
        assert reason.startswith("refused: cut off: ")
        assert "amount" in reason
        assert listener.frames == []
        assert system.post.frames_rejected == {"wrong_type": 1}
        foreign.abort()


@pytest.mark.virtual_time
async def test_a_peer_speaks_only_for_itself() -> None:
    async with Cluster() as cluster:
        here, honest = await cluster.system("here"), await cluster.system("honest")
        ref = await honest.spawn(Accountant, "accountant")
        watcher = Watcher(ref)
        watcher_ref = await here.spawn(lambda: watcher, "watcher")
        asking = asyncio.ensure_future(here.ask(ref, Hold(), timeout_s=5.0))
        await asyncio.sleep(1.0)
        foreign = cluster.network.transport("foreign", guests=Everybody())
        await foreign.start(Listener())
        itself = ActorRef(foreign.address, "liar", 7)
        lies = (
            (ref, Kind.TELL, Bump(1)),
            (itself, Kind.TELL, Down(ref, "crashed")),
            (itself, Kind.ASK, Down(ref, "crashed")),
            (itself, Kind.REPLY, Done()),
            (itself, Kind.SYSTEM, Ended(watcher_ref, ref, "crashed")),
            (itself, Kind.SYSTEM, Ended(ref, itself, "crashed")),
            (itself, Kind.SYSTEM, Unwatch(watcher_ref, (ref,))),
            (itself, Kind.SYSTEM, Watch(ref, (watcher_ref,))),
            (itself, Kind.SYSTEM, PushedBack(ref)),
            (itself, Kind.SYSTEM, Bump(1)),
        )
        for number, (source, kind, message) in enumerate(lies, 1):
            body = msgspec.Raw(encode_message(message))
            to = watcher_ref
            frame = Envelope(1, source, to, kind, number, 1, None, "ordinary", body)
            foreign.send(here.address, encode_envelope(frame))
        await asyncio.sleep(1.0)
        assert here.post.frames_rejected == {"not_allowed": len(lies)}
        assert watcher.downs == []
        assert not asking.done()
        here.tell(ref, Bump(1))  # nobody pushed back
        with pytest.raises(AskTimeout):
            await asking
        foreign.abort()


@pytest.mark.virtual_time
async def test_an_address_that_a_message_made_up_is_dialled_now_and_then_and_logged_once() -> None:
    dialled = []

    class Network(MemoryNetwork):
        def dial(self, source: MemoryTransport, address: str) -> MemoryConnection:
            dialled.append(address)
            return super().dial(source, address)

    async with Cluster() as cluster:
        cluster.network = Network(random.Random(0))
        system = await cluster.system("here")
        teller = Accountant()
        await system.spawn(lambda: teller, "teller")
        made_up = ActorRef("memory://made-up", "node", 5)
        with structlog.testing.capture_logs() as logs:
            for _ in range(3000):
                try_tell(teller, made_up, Bump(1))
                await asyncio.sleep(0.1)
    assert 300 / (3 + 5) <= len(dialled) <= 300 / (3 + 5) + 5
    assert [line["peer"] for line in logs if line["event"] == "peer_lost"] == ["memory://made-up"]
    assert len([line for line in logs if line["event"] == "undeliverable"]) <= 301


async def test_a_process_can_be_asked_by_an_address_that_is_not_its_own() -> None:
    transport = ZeroMQTransport(guests=Everybody(), advertise="tcp://coordinator.example:7777")
    server, client = (
        ActorSystem(each, rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING)
        for each in (transport, ZeroMQTransport(guests=Everybody()))
    )
    await server.start()
    await client.start()
    accountant = await server.spawn(Accountant, "accountant")
    address = f"{transport.router.endpoint}/{key_of(transport.address)}"
    ref = client.well_known(address, "accountant")
    watcher = Watcher(ref)
    await client.spawn(lambda: watcher, "watcher")
    assert await client.ask(ref, ReadTally(), timeout_s=10.0) == Tally(())
    await server.stop(accountant)
    async with asyncio.timeout(10.0):
        await watcher.first_down.wait()
    assert watcher.downs == [Down(ref, "stopped")]
    await server.aclose()
    await client.aclose()


@pytest.mark.virtual_time
async def test_a_system_that_could_not_start_can_be_closed() -> None:
    network = MemoryNetwork(random.Random(0))
    async with Cluster() as cluster:
        cluster.network = network
        await cluster.system("here")
        again = network.transport("here")
        system = ActorSystem(again, rng=random.Random(0), rights=ANYBODY_SAYS_ANYTHING)
        with pytest.raises(AddressInUse):
            await system.start()
        await system.aclose()


# --- the event loop -------------------------------------------------------------------


async def name_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


@pytest.mark.parametrize(
    ("choice", "module"), [("asyncio", "asyncio.unix_events"), ("uvloop", "uvloop"), ("", "uvloop")]
)
def test_the_environment_chooses_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, choice: str, module: str
) -> None:
    monkeypatch.setenv(loop.CHOICE_VARIABLE, choice)
    assert loop.run(name_of_loop()) == module


def test_an_unknown_event_loop_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loop.CHOICE_VARIABLE, "twisted")
    with pytest.raises(UserError, match="twisted"):
        loop.run(name_of_loop())


def test_without_uvloop_asyncio_is_used_unless_uvloop_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    monkeypatch.setenv(loop.CHOICE_VARIABLE, "")
    assert loop.run(name_of_loop()) == "asyncio.unix_events"
    monkeypatch.setenv(loop.CHOICE_VARIABLE, "uvloop")
    with pytest.raises(MissingDependency, match="pip install uvloop"):
        loop.run(name_of_loop())
