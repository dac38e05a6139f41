"""The mailbox of one actor: bounded, two lanes, one consumer.

Invariants: system messages are taken before ordinary ones and each lane is first in, first out; an
offer beyond the bound is refused and changes nothing; `force` is for what the runtime owes an actor
(its `Down`s), whose number is bounded by the watches it placed; calls are the actor's own, which
bounds them itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from spotlight.transport.control import ActorRef, Kind, Lane, Message

Call = Callable[[], Awaitable[None]]
"""Something that an actor has to do in a turn of its own."""


class Delivery(msgspec.Struct, gc=False):
    """A message on its way into an actor."""

    message: Message
    source: ActorRef
    kind: Kind
    correlation: int
    deadline: float | None
    """When the asker gives up, on this loop's clock; None for a tell."""


class Mailbox:
    """Holds deliveries and calls until the actor takes them."""

    def __init__(self, capacity: int) -> None:
        """`capacity` bounds each lane. Raises `ValueError` when it is below one."""
        if capacity < 1:
            raise ValueError(f"the capacity of a mailbox must be at least 1, not {capacity}")
        self.capacity = capacity
        self.greatest = 0
        """The most deliveries that were ever waiting."""
        self._system: deque[Delivery | Call] = deque()
        self._ordinary: deque[Delivery | Call] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._system) + len(self._ordinary)

    def offer(self, delivery: Delivery) -> bool:
        """Append to the lane of the message's type; False when that lane is full."""
        lane = self._system if delivery.message.lane == "system" else self._ordinary
        if len(lane) >= self.capacity:
            return False
        lane.append(delivery)
        self._wake()
        return True

    def force(self, delivery: Delivery) -> None:
        """Append to the system lane whatever the bound."""
        self._system.append(delivery)
        self._wake()

    def add_call(self, call: Call, *, lane: Lane) -> None:
        """Append to that lane whatever the bound."""
        (self._system if lane == "system" else self._ordinary).append(call)
        self._wake()

    def take(self) -> Delivery | Call | None:
        """The next one, or None."""
        if self._system:
            return self._system.popleft()
        if self._ordinary:
            return self._ordinary.popleft()
        return None

    async def wait(self) -> None:
        """Return once there is something to take."""
        while not self._system and not self._ordinary:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def drain(self) -> list[Delivery]:
        """Take everything; calls are dropped, as nobody waits for them."""
        waiting = (*self._system, *self._ordinary)
        deliveries = [one for one in waiting if isinstance(one, Delivery)]
        self._system.clear()
        self._ordinary.clear()
        return deliveries

    def _wake(self) -> None:
        waiting = len(self._system) + len(self._ordinary)
        if waiting > self.greatest:
            self.greatest = waiting
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
