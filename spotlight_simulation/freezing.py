"""Processes of a simulated cluster share one event loop; this one can stop some of them as SIGSTOP
does, and end them as SIGKILL does.

Everything that a process starts inherits its context, so whatever is due can be told by process.
What belongs to a stopped one is put aside before every turn of the loop, and comes back when it
goes on. Its clock has gone on meanwhile: timers that are past then fire at once, in their order.
A task of one that was killed takes no further step: all that it sees is its cancellation.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context

from spotlight_simulation.virtual_time import VirtualTimeLoop

_PROCESS: ContextVar[str] = ContextVar("process", default="")
_TENANT: ContextVar[str] = ContextVar("tenant", default="")
_TENANTS = ("job-", "session-")
"""How the names of the actors begin that are a job or a session; their ids follow."""


def current_process() -> str:
    """The identity of the process that runs now; empty outside all of them."""
    return _PROCESS.get()


def context_of(process: str) -> Context:
    """A context in which everything belongs to a process, given by its identity."""
    context = copy_context()
    context.run(_PROCESS.set, process)
    return context


def current_tenant() -> str:
    """The id of the job or session for which a coordinator does something now; empty for none."""
    return _TENANT.get()


@contextmanager
def as_tenant(actor: str) -> Iterator[None]:
    """Within, whatever begins belongs to the job or session that an actor is, if it is one."""
    prefix = next((each for each in _TENANTS if actor.startswith(each)), None)
    tenant = _TENANT.get() if prefix is None else actor.removeprefix(prefix)
    before = _TENANT.set(tenant)
    try:
        yield
    finally:
        _TENANT.reset(before)


class FreezableLoop(VirtualTimeLoop):
    """Virtual time, on which single processes can be stopped and ended."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float

    def __init__(self) -> None:
        super().__init__()
        self._aside: dict[str, list[asyncio.Handle]] = {}
        self._condemned: dict[str, set[asyncio.Task[object]]] = {}

    def freeze(self, process: str) -> None:
        """From now on nothing of this process runs."""
        self._aside.setdefault(process, [])

    def thaw(self, process: str) -> int:
        """It goes on; returns how much of it was due meanwhile."""
        handles = self._aside.pop(process, [])
        for handle in handles:
            if isinstance(handle, asyncio.TimerHandle):
                heapq.heappush(self._scheduled, handle)
            else:
                self._ready.append(handle)
        return sum(not handle.cancelled() for handle in handles)

    def is_frozen(self, process: str) -> bool:
        """Whether it stands still."""
        return process in self._aside

    def condemn(self, process: str) -> None:
        """From now on its tasks take no step but to be cancelled."""
        self.thaw(process)
        self._condemned[process] = set()
        self._cancel_condemned()

    def forget(self, process: str) -> None:
        """Nothing is left of it."""
        self._condemned.pop(process, None)

    def _run_once(self) -> None:
        if self._aside:
            self._put_aside()
        if self._condemned:
            self._cancel_condemned()
        super()._run_once()  # type: ignore[misc]

    def _put_aside(self) -> None:
        """Before every turn: whatever would run in it."""
        ready = [handle for handle in self._ready if not self._is_aside(handle)]
        if len(ready) < len(self._ready):
            self._ready.clear()
            self._ready.extend(ready)
        while self._scheduled:
            now = self._now if self._ready else self._scheduled[0].when()
            due = list(self._take_due(now + self._clock_resolution))
            kept = [timer for timer in due if not self._is_aside(timer)]
            for timer in kept:
                heapq.heappush(self._scheduled, timer)
            if kept or self._ready:
                return

    def _take_due(self, until: float) -> Iterator[asyncio.TimerHandle]:
        while self._scheduled and self._scheduled[0].when() < until:
            yield heapq.heappop(self._scheduled)

    def _cancel_condemned(self) -> None:
        for handle in self._ready:
            cancelled = self._condemned.get(_process_of(handle))
            if cancelled is None:
                continue
            task = getattr(getattr(handle, "_callback", None), "__self__", None)
            if isinstance(task, asyncio.Task) and task not in cancelled:
                cancelled.add(task)
                task.cancel()

    def _is_aside(self, handle: asyncio.Handle) -> bool:
        aside = self._aside.get(_process_of(handle))
        if aside is None or handle.cancelled():
            return False
        aside.append(handle)
        return True


def _process_of(handle: asyncio.Handle) -> str:
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(_PROCESS, "")
