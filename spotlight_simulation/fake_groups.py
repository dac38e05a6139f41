"""What the ranks of a simulated group share: SP groups that denoise together, and trainer ranks.

As with real collectives whatever they do together lasts until all ranks have come to its end: while
one is stopped the others wait, and when one is gone or has left the others behind they fail, at
once or only when somebody tells them. All methods that wait run in work of a virtual thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spotlight.errors import TransportError
from spotlight_simulation.history import History
from spotlight_simulation.virtual_threads import wait_for


class FakeGroup:
    """See the module's docstring.

    Args:
        size: the number of its ranks.
        limit_s: how long one rank may wait for the others.
    """

    def __init__(self, size: int, history: History, *, limit_s: float) -> None:
        self.size = size
        self.workers: dict[int, str] = {}
        """The workers that have joined, by rank."""
        self._history = history
        self._limit_s = limit_s
        self.broken = ""
        """Why whoever waits for the others fails; empty while nobody does."""
        self._sent: list[Any] = []
        """All that rank 0 has sent."""
        self._gathered: dict[int, dict[int, Any]] = {}
        """What each rank brought, by the number of the gathering."""
        self._waiting: list[asyncio.Future[None]] = []
        self._gone: set[str] = set()
        """Workers whose processes have ended since."""
        self.moved_at = 0.0
        """When somebody last came or spoke."""

    @property
    def awaited(self) -> bool:
        """Whether somebody who is still there waits for another."""
        there = self._gone.symmetric_difference(self.workers.values())
        return bool(self._waiting) and not self.broken and bool(there)

    @property
    def gatherings(self) -> int:
        """To which somebody has come."""
        return len(self._gathered)

    def join(self, rank: int, worker: str) -> None:
        """A worker has this rank."""
        self.workers[rank] = worker

    def send(self, rank: int, what: Any) -> None:
        """Rank 0 goes on whether or not the others listen."""
        self._require_whole()
        if self.workers[rank] not in self._gone:
            self._sent.append(what)
            self._wake()

    def receive(self, number: int) -> Any:
        """What rank 0 sent as its `number`th. Raises `TransportError`."""
        self._wait_until(lambda: len(self._sent) > number)
        return self._sent[number]

    def gather(self, rank: int, number: int, what: Any) -> list[Any]:
        """What all ranks bring to the `number`th gathering, by rank. Raises `TransportError`."""
        self._require_whole()
        brought = self._gathered.setdefault(number, {})
        brought[rank] = what
        self._wake()
        self._wait_until(lambda: len(brought) == self.size)
        return [brought[rank] for rank in sorted(brought)]

    def require_alike(self, states: Sequence[object]) -> None:
        """All ranks must hold the same after a step."""
        if any(state != states[0] for state in states):
            workers = sorted(self.workers.values())
            self._history.violation(f"the ranks of {workers} hold different latents")

    def lose(self, worker: str, *, seen: bool) -> None:
        """Its process is gone; perhaps the others see that."""
        if worker in self.workers.values():
            self._gone.add(worker)
            if seen:
                self.break_up(f"{worker} is gone")

    def break_up(self, reason: str) -> None:
        """Whoever waits for the others, now or later, fails."""
        self.broken = self.broken or reason
        self._wake()

    def _require_whole(self) -> None:
        if self.broken:
            raise TransportError(self.broken)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._limit_s
        while not condition():
            self._require_whole()
            if loop.time() >= give_up_at:
                raise TransportError("a collective took too long")
            changed: asyncio.Future[None] = loop.create_future()
            self._waiting.append(changed)
            timer = loop.call_at(give_up_at, _wake, changed)
            wait_for(changed)
            timer.cancel()

    def _wake(self) -> None:
        self.moved_at = asyncio.get_running_loop().time()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _wake(future)


class FakeGroups:
    """All groups of a cluster, by what names them."""

    def __init__(self, history: History, *, limit_s: float) -> None:
        self._history = history
        self._limit_s = limit_s
        self._groups: dict[object, FakeGroup] = {}

    def join(self, name: object, size: int, rank: int, worker: str) -> FakeGroup:
        """The same one for all its ranks."""
        if name not in self._groups:
            self._groups[name] = FakeGroup(size, self._history, limit_s=self._limit_s)
        self._groups[name].join(rank, worker)
        return self._groups[name]

    def __iter__(self) -> Iterator[FakeGroup]:
        return iter(self._groups.values())

    def lose(self, worker: str, *, seen: bool) -> None:
        """Its process is gone; perhaps the others see that."""
        for group in self:
            group.lose(worker, seen=seen)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
