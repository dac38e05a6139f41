"""How simulated members denoise together: rank 0 says what comes next, and a step is taken once all
have taken it.

As with real collectives a step lasts until all ranks have come to its end: while one is stopped the
others wait, and when one is gone or has left the others behind they fail, at once or only when the
node tells them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from spotlight.actors.protocol import GroupPlan
from spotlight.errors import TransportError
from spotlight.testing import fingerprints
from spotlight.testing.history import History

_MEET_S = 0.02
_MEET_LIMIT_S = 5.0
_COLLECTIVE_LIMIT_S = 300.0


@dataclass(frozen=True)
class State:
    """What all ranks hold before a step."""

    weights: str
    step: int
    latents: tuple[str, ...]

    def denoised(self) -> State:
        """One step further."""
        latents = tuple(fingerprints.denoised(each, self.step) for each in self.latents)
        return State(self.weights, self.step + 1, latents)


_Command: TypeAlias = "tuple[int, State | bool]"
"""Number of the stretch, and where it begins, or whether another step is taken."""


@dataclass(eq=False)
class FakeGroup:
    """What the ranks of one group share."""

    workers: tuple[str, ...]
    history: History
    broken: str = ""
    words: list[_Command] = field(default_factory=list)
    """All that rank 0 has said."""
    arrived: dict[int, list[State]] = field(default_factory=dict)
    """By the number of the step; what each rank has made of it."""
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    moved_at: float = 0.0
    """When somebody last came or spoke."""
    gone: set[str] = field(default_factory=set)
    """Workers whose processes have ended since."""

    @property
    def awaited(self) -> bool:
        """Whether somebody who is still there waits for another."""
        return bool(self.waiting) and not self.broken and not self.gone.issuperset(self.workers)

    def say(self, word: _Command) -> None:
        """Rank 0 goes on whether or not the others listen."""
        self.words.append(word)
        self._wake()

    async def hear(self, number: int) -> _Command:
        """The word of that number."""
        while len(self.words) <= number:
            await self._change()
        return self.words[number]

    async def arrive(self, number: int, state: State) -> None:
        """Return when all ranks have taken the step."""
        states = self.arrived.setdefault(number, [])
        states.append(state)
        if state != states[0]:
            self.history.violation(f"the ranks of {self.workers} hold different latents")
        self._wake()
        while len(states) < len(self.workers):
            await self._change()

    def break_up(self, reason: str) -> None:
        """Whoever waits for the others, now or later, fails."""
        self.broken = self.broken or reason
        self._wake()

    async def _change(self) -> None:
        if self.broken:
            raise TransportError(self.broken)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        try:
            async with asyncio.timeout(_COLLECTIVE_LIMIT_S):
                await future
        except TimeoutError as error:
            raise TransportError("a collective took too long") from error

    def _wake(self) -> None:
        self.moved_at = asyncio.get_running_loop().time()
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class StepGroup:
    """A group of one; the others are the same with more members."""

    members = 1

    def begin(self, stretch: int, state: State) -> None:
        """Steps follow; said by rank 0, as the next two."""

    async def step(self, state: State, seconds: float) -> State:
        """Take one; returns what there is then. Raises `TransportError`."""
        await asyncio.sleep(seconds)
        return state.denoised()

    def end(self) -> None:
        """No more of this stretch."""


class InFakeGroup(StepGroup):
    """One rank's end of a group."""

    def __init__(self, circle: FakeGroup) -> None:
        self.members = len(circle.workers)
        self.circle = circle
        self._stretch = self._heard = self._steps = 0

    def begin(self, stretch: int, state: State) -> None:
        """See `StepGroup.begin`."""
        self._stretch = stretch
        self.circle.say((stretch, state))

    async def step(self, state: State, seconds: float) -> State:
        """See `StepGroup.step`."""
        self.circle.say((self._stretch, True))
        return await self._step(state, seconds)

    def end(self) -> None:
        """See `StepGroup.end`."""
        self.circle.say((self._stretch, False))

    async def follow(self, stretch: int, weights: str, step_s: Callable[[], float]) -> int:
        """Take the steps of a stretch that rank 0 leads; returns how many."""
        state = await self._hear(stretch)
        assert isinstance(state, State), "rank 0 begins with the latents"
        state = State(weights, state.step, state.latents)
        first = state.step
        while await self._hear(stretch) is True:
            state = await self._step(state, step_s())
        return state.step - first

    async def _hear(self, stretch: int) -> State | bool:
        number, word = await self.circle.hear(self._heard)
        self._heard += 1
        if number != stretch:
            raise TransportError(f"rank 0 leads stretch {number}, not {stretch}")
        return word

    async def _step(self, state: State, seconds: float) -> State:
        after = await super().step(state, seconds)
        self._steps += 1
        await self.circle.arrive(self._steps, after)
        return after


class FakeCollectives:
    """All groups of a cluster that simulated members have begun to form."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._circles: dict[object, FakeGroup] = {}

    def of(self, order: GroupPlan) -> FakeGroup:
        """The one that an order is about; the same for all its ranks."""
        seats = tuple((seat.worker, seat.worker_epoch) for seat in order.seats)
        workers = tuple(seat.worker for seat in order.seats)
        return self._circles.setdefault((order.epoch, seats), FakeGroup(workers, self._history))

    def __iter__(self) -> Iterator[FakeGroup]:
        return iter(self._circles.values())

    def lose(self, worker: str, *, seen: bool) -> None:
        """Its process is gone; perhaps the others see that."""
        for circle in self:
            if worker in circle.workers:
                circle.gone.add(worker)
                if seen:
                    circle.break_up(f"{worker} is gone")


class Connector:
    """See `group_seat.Connector`. `fingerprint` is that of the member's job."""

    def __init__(self, circles: FakeCollectives, fingerprint: Callable[[], str | None]) -> None:
        self._circles = circles
        self.fingerprint = fingerprint
        self.alone = StepGroup()

    def meet(self, order: GroupPlan, rank: int, send: Callable[[str, bytes], None]) -> _Arrival:
        """See `Connector.meet`."""
        names = [f"rank {number}" for number in range(len(order.seats))]
        return _Arrival(self._circles, self._circles.of(order), names, names[rank], send)

    def leave(self, company: StepGroup) -> None:
        """See `Connector.leave`."""
        if isinstance(company, InFakeGroup):
            company.circle.break_up("a member has left")

    leave_behind = leave


class _Arrival:
    """See `group_seat.Encounter`."""

    def __init__(
        self,
        circles: FakeCollectives,
        circle: FakeGroup,
        names: Sequence[str],
        own: str,
        send: Callable[[str, bytes], None],
    ) -> None:
        self._circles = circles
        self._circle = circle
        self._own = own
        self._send = send
        self._absent = {*names} - {own}
        self._closed = ""
        self._changed = asyncio.Event()

    def deliver(self, key: str, value: bytes) -> None:
        """See `Arrival.deliver`."""
        self._absent.discard(key)
        if not self._absent:
            self._changed.set()

    def close(self, reason: str) -> None:
        """See `Arrival.close`."""
        self._closed = reason
        self._changed.set()

    async def company(self) -> InFakeGroup:
        """See `Arrival.company`."""
        self._send(self._own, b"here")
        try:
            async with asyncio.timeout(_MEET_LIMIT_S):
                await self._changed.wait()
        except TimeoutError as error:
            missing = min(self._absent, default="word")  # the last came in the same moment
            raise TransportError(f"no {missing} after {_MEET_LIMIT_S:g} s") from error
        if self._closed:
            raise TransportError(self._closed)
        await asyncio.sleep(_MEET_S)
        return InFakeGroup(self._circle)
