"""Calls callbacks in a thread of its own, so that nothing they do holds up the run.

Invariants:
- `put` never waits. When callbacks are too slow the oldest records are dropped, and counted.
- An error of a callback reaches nobody but the log and its count; `StopJob` is passed on.
- Nothing waits for the thread longer than the caller says, and the interpreter not at all.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import structlog

from spotlight.errors import StopJob
from spotlight.record.run_events import CallbackTrouble
from spotlight.text import error_text, plain
from spotlight.tracebacks import foreign_traceback
from spotlight.trackers.callback import Callback, Told, deliver

log = structlog.get_logger(__name__)

_MOST_WAITING = 4096
"""Records: some minutes of a large cluster's events."""


class NamedCallback(NamedTuple):
    """A callback that is made in the thread that calls it: what it imports may take seconds."""

    name: str
    """How the log calls it."""
    make: Callable[[], Callback]


class _Trouble:
    """What went wrong with one callback."""

    def __init__(self) -> None:
        self.failures = 0
        self.error = self.traceback = ""


class CallbackThread:
    """See the module's docstring. Made in a running loop; it begins with the first record.

    Args:
        callbacks: whom to call, in this order.
        stop: called in the loop, with the name and the reason of a callback that wants the job to
            end.
        troubled: called in the loop when a callback fails for the first time.
        most: records that wait at most.
    """

    def __init__(
        self,
        callbacks: Sequence[NamedCallback],
        stop: Callable[[str, str], None],
        *,
        troubled: Callable[[CallbackTrouble], None] | None = None,
        most: int = _MOST_WAITING,
    ) -> None:
        self._named = callbacks
        self._stop = stop
        self._troubled = troubled
        self._waiting: deque[Told] = deque(maxlen=most)
        self._changed = threading.Condition()
        self._closing = False
        self._dropped = 0
        self._trouble = {name: _Trouble() for name, _ in callbacks}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)

    @property
    def running(self) -> bool:
        """Whether there is somebody who may yet be told of something."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Records that the callbacks have not been told of."""
        return len(self._waiting)

    def put(self, record: Told) -> None:
        """Have the callbacks told of a record, soon."""
        if not self._named:
            return
        with self._changed:
            if self._closing:
                return
            self._dropped += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(record)
            if self._thread.ident is None:
                self._thread.start()
            self._changed.notify_all()

    async def aclose(self, limit_s: float) -> bool:
        """Have what waits be called, for so many seconds at most; whether that was enough."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, limit_s)
        ended = not self._thread.is_alive()
        if not ended:
            with self._changed:
                self._dropped += len(self._waiting)
                self._waiting.clear()
            log.warning("callbacks_left_behind", waited_s=limit_s)
        return ended

    def troubles(self) -> tuple[CallbackTrouble, ...]:
        """What went wrong so far, for each callback that failed or was too slow."""
        with self._changed:
            return tuple(
                self._as_record(name)
                for name, it in self._trouble.items()
                if it.failures or self._dropped
            )

    def _as_record(self, name: str) -> CallbackTrouble:
        it = self._trouble[name]
        return CallbackTrouble(
            callback=name,
            failures=it.failures,
            dropped=self._dropped,
            error=it.error,
            traceback=it.traceback,
        )

    def _run(self) -> None:
        callbacks = [made for one in self._named if (made := self._made(one)) is not None]
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                record = self._waiting.popleft()
            for name, callback in callbacks:
                self._call(name, partial(deliver, record, callback))

    def _made(self, named: NamedCallback) -> tuple[str, Callback] | None:
        made: list[tuple[str, Callback]] = []
        self._call(named.name, lambda: made.append((named.name, named.make())))
        return made[0] if made else None

    def _call(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except StopJob as wish:
            reason = plain(wish)
            log.info("callback_stops_job", callback=name, reason=reason)
            with suppress(RuntimeError):  # the loop is closed: the job is over
                self._loop.call_soon_threadsafe(self._stop, name, reason)
        except (Exception, SystemExit) as error:  # whatever is wrong with it, the run goes on
            self._count(name, error)

    def _count(self, name: str, error: BaseException) -> None:
        with self._changed:
            trouble = self._trouble[name]
            trouble.failures += 1
            trouble.error, trouble.traceback = error_text(error), foreign_traceback(error)
            failures, record = trouble.failures, self._as_record(name)
        if failures == 1 and self._troubled is not None:
            with suppress(RuntimeError):  # the loop is closed: the job is over
                self._loop.call_soon_threadsafe(self._troubled, record)
        if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, 8th, ... time
            log.warning("callback_failed", callback=name, failures=failures, exc_info=error)
