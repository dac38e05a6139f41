"""What members of a group that forms say to each other."""

from __future__ import annotations

import asyncio

import pytest

from spotlight.actors.protocol.down import GroupPlan, Seat
from spotlight.actors.protocol.peers import Introduce
from spotlight.actors.runtime import ActorRef
from spotlight.actors.worker.joining import JoiningGroup
from spotlight.errors import TransportError

MODEL = "job/1"


class Reader:
    """Where the entries of others go."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, bytes]] = []
        self.closed: list[str] = []

    def deliver(self, key: str, value: bytes) -> None:
        self.entries.append((key, value))

    def close(self, reason: str) -> None:
        self.closed.append(reason)


class Table:
    """The members of a group, who hear each other unless the test says otherwise."""

    def __init__(self, *models: str) -> None:
        ref = ActorRef("memory://x", "member", 1)
        seats = tuple(Seat(f"w{rank}", ref, ref) for rank in range(len(models)))
        order = GroupPlan(7, seats, ring=1, at_once=False)
        self.deaf: set[int] = set()
        self.said: list[tuple[int, Introduce]] = []
        self.members = [
            JoiningGroup(
                order, rank, model, lambda seat, message: self._tell(seats.index(seat), message)
            )
            for rank, model in enumerate(models)
        ]

    def _tell(self, rank: int, message: Introduce) -> None:
        self.said.append((rank, message))
        if rank not in self.deaf:
            self.members[rank].accept(message)


async def settled(meeting: JoiningGroup) -> bool:
    """Whether it need not wait for the others."""
    try:
        async with asyncio.timeout(0.01):
            await meeting.all_introduced()
    except TimeoutError:
        return False
    return True


async def test_nobody_connects_before_all_were_heard_of() -> None:
    table = Table(MODEL, MODEL, MODEL)
    first, second, third = table.members
    first.introduce()
    second.introduce()
    assert [await settled(each) for each in table.members] == [False, False, True]
    third.introduce()
    assert [await settled(each) for each in table.members] == [True, True, True]


async def test_entries_are_read_whether_they_come_before_or_later() -> None:
    first, second = Table(MODEL, MODEL).members
    reader = Reader()
    second.set_entry("a", b"1")
    first.deliver_to(reader)
    second.set_entry("b", b"2")
    assert reader.entries == [("a", b"1"), ("b", b"2")]


async def test_what_was_lost_is_said_again_to_one_who_introduces_itself() -> None:
    table = Table(MODEL, MODEL)
    first, second = table.members
    reader = Reader()
    first.deliver_to(reader)
    table.deaf = {0}
    second.introduce()
    second.set_entry("a", b"1")
    assert not await settled(first)
    table.deaf = set()
    first.introduce()
    assert reader.entries == [("a", b"1")]
    assert await settled(first)


async def test_words_end() -> None:
    table = Table(MODEL, MODEL)
    for member in table.members:
        member.set_entry("a", b"1")
        member.introduce()
        member.introduce()
    assert len(table.said) < 20


async def test_those_who_are_not_heard_of_are_named() -> None:
    first, second, *_ = Table(MODEL, MODEL, MODEL, MODEL).members
    reader = Reader()
    first.deliver_to(reader)
    second.introduce()
    first.give_up_absent()
    assert first.culprits == ("w2", "w3")
    assert reader.closed == ["nothing was heard of w2, w3"]
    with pytest.raises(TransportError, match="nothing was heard of w2, w3"):
        await first.all_introduced()


async def test_nobody_is_given_up_when_all_were_heard_of() -> None:
    first, second = Table(MODEL, MODEL).members
    second.introduce()
    first.give_up_absent()
    assert first.culprits == ()
    assert await settled(first)


@pytest.mark.parametrize("models", [("a", "b", "a"), ("b", "a", "b")])
async def test_who_has_another_model_than_rank_0_is_named_by_all(models: tuple[str, ...]) -> None:
    members = Table(*models).members
    for member in members:
        member.introduce()
    for member in members:
        assert member.culprits == ("w1",)
        with pytest.raises(TransportError, match="another model than w0 has w1"):
            await member.all_introduced()


async def test_before_rank_0_is_heard_of_nobody_is_the_odd_one() -> None:
    _, second, third = Table("a", "b", "a").members
    second.introduce()
    assert not await settled(third)
    assert third.culprits == ("w0",)


async def test_one_that_is_closed_fails_whoever_waits() -> None:
    first, _ = Table(MODEL, MODEL).members
    waiting = asyncio.ensure_future(first.all_introduced())
    await asyncio.sleep(0)
    first.close("a newer group was planned")
    first.close("another reason")
    with pytest.raises(TransportError, match="a newer group was planned"):
        await waiting
