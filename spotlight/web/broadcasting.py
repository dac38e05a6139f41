"""Tells everybody who looks at a run what changed: one follower of its files for all of them.

A viewer gets the whole view first, then changes, each with the number of the view that it makes;
numbers rise by one. What a viewer has not taken is bounded: one that is too slow loses its changes
and gets the whole view instead, which is counted. Files are read in another thread, a small part of
the time, only while somebody looks and a little longer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import structlog

from spotlight.errors import UserError
from spotlight.report.run_view import RunView
from spotlight.web.refusing import Refused, busy, not_found
from spotlight.web.view_changes import change_between
from spotlight.web.watched_run import WatchedRun

log = structlog.get_logger(__name__)

MOST_RUNS = 16
"""Runs that are followed at once."""
MOST_VIEWERS = 64
"""Viewers of all runs together."""
MOST_WAITING = 16
"""Changes that wait for a viewer; with one more it is too slow."""
_PAUSE_S = 0.05
"""The files are looked at this often at most."""
_REST = 4.0
"""Seconds of rest for each second of reading and telling."""
_CATCH_UP_S = 1.0
"""Reading goes on for so long before what was read so far is shown."""
_FIRST_READ_S = 2.0
"""The first reading goes on for so long: that is all of a run with a thousand workers."""
LINGER_S = 15.0
"""A run is followed for so long after its last viewer has gone: a page that is loaded again comes
back."""
_AGAIN_S = 5
_FIRST_LIMIT_S = 60.0


class Viewing:
    """What one viewer has yet to be told."""

    def __init__(self, run: Broadcast) -> None:
        self._run = run
        self._changes: deque[bytes] = deque()
        self._wants_view = True
        self._told = asyncio.Event()
        self._told.set()
        self._last = b""

    async def next(self, patience_s: float) -> bytes:
        """The next event for the viewer; empty if there is none for so long. Raises `Refused` once
        the run is followed no more."""
        try:
            async with asyncio.timeout(patience_s):
                await self._told.wait()
        except TimeoutError:
            return b""
        if self._wants_view:
            self._wants_view = False
            event = self._run.whole_view()
        elif self._changes:
            event = self._changes.popleft()
        elif self._run.ended is not None:
            raise self._run.ended
        else:
            event = b""
        if not self._changes and self._run.ended is None:
            self._told.clear()
        return event

    def tell(self, change: bytes) -> bool:
        """Something changed; whether the viewer keeps up."""
        self._told.set()
        if self._wants_view:
            return True
        self._changes.append(change)
        if len(self._changes) <= MOST_WAITING:
            return True
        self._changes.clear()
        self._wants_view = True
        return False

    def wake(self) -> None:
        """The run is followed no more."""
        self._told.set()


class Broadcast:
    """One run that is followed.

    Args:
        on_end: called when nobody has looked for a while, or it can be followed no more.
    """

    def __init__(self, folder: Path, on_end: Callable[[Broadcast], None]) -> None:
        self.ended: Refused | None = None
        """Why it is followed no more."""
        self.slow_viewers = 0
        """How often a viewer was too slow."""
        self.viewers: set[Viewing] = set()
        self.folder = folder
        self._on_end = on_end
        self._view: RunView | None = None
        self._number = 0
        self._first = asyncio.Event()
        self._left_at = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._follow())

    async def ready(self) -> None:
        """Return when there is a view. Raises `Refused`."""
        try:
            async with asyncio.timeout(_FIRST_LIMIT_S):
                await self._first.wait()
        except TimeoutError as error:
            raise busy("the run takes too long to read", _AGAIN_S) from error
        if self.ended is not None:
            raise self.ended

    def view(self) -> RunView:
        """The latest one, once it is `ready`."""
        assert self._view is not None
        return self._view

    def whole_view(self) -> bytes:
        """The latest one as an event."""
        return _event(self._number, "view", msgspec.json.encode(self.view()))

    def join(self) -> Viewing:
        """Another viewer, who gets the whole view first."""
        viewing = Viewing(self)
        self.viewers.add(viewing)
        return viewing

    def leave(self, viewing: Viewing) -> None:
        """It looks no more."""
        self.viewers.discard(viewing)
        self._left_at = asyncio.get_running_loop().time()

    def cancel(self) -> None:
        """Follow it no more, at once."""
        self._task.cancel()

    async def _follow(self) -> None:
        try:
            await self._tell_changes()
            self.ended = busy("nobody looked at the run; ask again", 1)
        except Refused as error:
            self.ended = error
        except UserError as error:
            self.ended = busy(str(error), _AGAIN_S)
        except asyncio.CancelledError:
            self.ended = busy("the server ends", _AGAIN_S)
            raise
        except Exception as error:
            log.exception("run_cannot_be_shown", run=str(self.folder))
            self.ended = busy(f"the run cannot be shown ({type(error).__name__})", _AGAIN_S)
        finally:
            self._on_end(self)
            self._first.set()
            for viewing in self.viewers:
                viewing.wake()

    async def _tell_changes(self) -> None:
        run = await asyncio.to_thread(WatchedRun, self.folder)
        try:
            await self._tell_changes_of(run)
        finally:
            run.close()

    async def _tell_changes_of(self, run: WatchedRun) -> None:
        now = asyncio.get_running_loop().time
        while self.viewers or now() - self._left_at < LINGER_S:
            begun = now()
            found = await asyncio.to_thread(_read, run, self._view)
            if found is not None:
                view, change = found
                self._view = view
                self._number += 1
                self._first.set()
                event = _event(self._number, "change", change)
                self.slow_viewers += sum(not each.tell(event) for each in self.viewers)
            await asyncio.sleep(max(_PAUSE_S, _REST * (now() - begun)))


class Broadcasts:
    """All runs that are followed, by their folders."""

    def __init__(self) -> None:
        self.slow_viewers = 0
        """How often a viewer of a run that is followed no more was too slow."""
        self._runs: dict[Path, Broadcast] = {}
        self._viewers = 0

    @property
    def followed(self) -> int:
        """How many runs are followed."""
        return len(self._runs)

    @property
    def viewers(self) -> int:
        """How many look."""
        return self._viewers

    @property
    def told_anew(self) -> int:
        """How often a viewer was too slow and got the whole view."""
        return self.slow_viewers + sum(each.slow_viewers for each in self._runs.values())

    @asynccontextmanager
    async def viewing(self, folder: Path) -> AsyncIterator[tuple[Broadcast, Viewing]]:
        """Look at a run while the context lasts. Raises `Refused` if too many do already."""
        if self._viewers >= MOST_VIEWERS:
            raise busy(
                f"{MOST_VIEWERS} viewers look already, and no more may; close some of these pages",
                _AGAIN_S,
            )
        run = self._runs.get(folder) or self._begin(folder)
        viewing = run.join()
        self._viewers += 1
        try:
            await run.ready()
            yield run, viewing
        finally:
            self._viewers -= 1
            run.leave(viewing)

    def cancel(self) -> None:
        """Follow none any more."""
        for run in list(self._runs.values()):
            run.cancel()

    def _begin(self, folder: Path) -> Broadcast:
        if len(self._runs) >= MOST_RUNS:
            self._let_one_go()
        run = Broadcast(folder, self._forget)
        self._runs[folder] = run
        return run

    def _let_one_go(self) -> None:
        idle = next((each for each in self._runs.values() if not each.viewers), None)
        if idle is None:
            raise busy(f"{MOST_RUNS} runs are looked at, and no more may be", _AGAIN_S)
        idle.cancel()
        self._forget(idle)

    def _forget(self, run: Broadcast) -> None:
        if self._runs.get(run.folder) is run:
            del self._runs[run.folder]
            self.slow_viewers += run.slow_viewers


def _read(run: WatchedRun, shown: RunView | None) -> tuple[RunView, bytes] | None:
    """The next view and what changed since the one that is shown, if anything did."""
    if not run.folder.is_dir():
        raise not_found("the run folder is gone")
    if not run.catch_up(_CATCH_UP_S if shown else _FIRST_READ_S) and shown is not None:
        return None
    view = run.view()
    if shown is None:
        return view, b""
    change = change_between(shown, view)
    return (view, msgspec.json.encode(change)) if change else None


def _event(number: int, name: str, data: bytes) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, name.encode(), data)
