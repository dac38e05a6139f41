"""Who sends parts of a message without end is found, and many connections do not raise the cost."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable

import pytest

from spotlight.timings import ConnectionTimings
from spotlight.transport.control.partial_message_guard import LOOKS, PartialMessageGuard

PERIOD_S = ConnectionTimings().guard_period_s

pytestmark = pytest.mark.virtual_time

LIMIT = 1000


class Wires:
    """What connections have received, as the system says when it is asked."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()
        self.asked: list[int] = []

    def bytes_received(self, descriptor: int) -> int:
        self.asked.append(descriptor)
        return self.received[descriptor]


class Guarded:
    """A guard over so many connections."""

    def __init__(self, count: int) -> None:
        self.wires = Wires()
        self.found: list[int] = []
        self.guard = PartialMessageGuard(
            self.wires,
            owner=self,
            period_s=PERIOD_S,
            limit=LIMIT,
        )
        for descriptor in range(count):
            self.guard.arrived(descriptor)

    def drain(self) -> None:
        """All that has arrived is read at once."""

    def end_partial(self, descriptor: int) -> None:
        self.found.append(descriptor)

    async def periods(self, count: int, each: Callable[[], None] = lambda: None) -> None:
        for _ in range(count):
            each()
            await asyncio.sleep(PERIOD_S)


@pytest.mark.parametrize("count", [1, LOOKS, 3 * LOOKS + 7])
async def test_who_holds_back_too_much_is_found_when_it_has_had_its_turn_and_a_look_after(
    count: int,
) -> None:
    it = Guarded(count)
    await it.periods(5)
    it.wires.received[count // 2] += LIMIT + 10_000
    await it.periods(math.ceil(count / LOOKS) + 2)
    assert it.found == [count // 2]
    it.guard.close()


async def test_no_more_connections_are_asked_about_in_a_period_however_many_there_are() -> None:
    it = Guarded(5 * LOOKS)
    await it.periods(10)
    assert len(it.wires.asked) <= 11 * LOOKS
    assert max(Counter(it.wires.asked).values()) <= 3, "all have their turn"
    assert set(it.wires.asked) == set(range(5 * LOOKS))
    it.guard.close()


@pytest.mark.parametrize("count", [1, 4 * LOOKS])
async def test_heartbeats_never_add_up(count: int) -> None:
    it = Guarded(count)

    def beat() -> None:
        it.wires.received.update(dict.fromkeys(range(count), 40))

    await it.periods(40 * math.ceil(count / LOOKS), beat)
    assert it.found == []
    it.guard.close()


@pytest.mark.parametrize("count", [1, 4 * LOOKS])
async def test_who_sends_whole_messages_may_send_as_much_as_it_likes(count: int) -> None:
    it = Guarded(count)

    def send() -> None:
        it.wires.received[0] += 10 * LIMIT
        it.guard.delivered(0)

    await it.periods(20, send)
    assert it.found == []
    it.guard.close()


async def test_what_a_stalled_loop_had_not_read_yet_is_not_held_against_anyone() -> None:
    it = Guarded(1)
    it.wires.received[0] += 10 * LIMIT
    await it.periods(1)
    await asyncio.sleep(PERIOD_S / 2)  # it is a suspect
    it.guard.delivered(0)
    await it.periods(3)
    assert it.found == []
    it.guard.close()


async def test_who_is_gone_is_not_asked_about() -> None:
    it = Guarded(2)
    it.wires.received[0] += 10 * LIMIT
    await asyncio.sleep(1.5 * PERIOD_S)
    it.guard.gone(0)
    it.wires.asked.clear()
    await it.periods(3)
    assert set(it.wires.asked) == {1} and it.found == []
    it.guard.close()
