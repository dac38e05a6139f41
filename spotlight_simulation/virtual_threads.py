"""The threads of a worker on virtual time: work runs in greenlets of the loop's thread, so it can
sleep on the loop's clock and wait for others without a line of it knowing.

Everything here is as deterministic as the loop. What a process runs belongs to its context, so it
stops and ends with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, NoReturn, TypeVar

import greenlet

ResultT = TypeVar("ResultT")


def sleep(seconds: float) -> None:
    """In work of a virtual thread: go on so many seconds later."""
    loop = asyncio.get_running_loop()
    loop.call_later(seconds, _current().resume)
    _current().pause()


def wait_for(future: asyncio.Future[ResultT]) -> ResultT:
    """In work of a virtual thread: the result of a future, or its exception."""
    if not future.done():
        work = _current()
        future.add_done_callback(lambda _: work.resume())
        work.pause()
    return future.result()


def wait_for_the_end() -> NoReturn:
    """In work of a virtual thread: its process is about to end."""
    _current().pause()
    raise greenlet.GreenletExit


class VirtualThreads:
    """See `spotlight.actors.worker.threads.WorkerThreads`."""

    def __init__(self) -> None:
        self._works: set[_Work] = set()
        self._accelerator = _Thread(self._works)
        self._scorer = _Thread(self._works)
        self._packer = _Thread(self._works)
        self.seconds = asyncio.get_running_loop().time

    def on_accelerator(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """See `WorkerThreads.on_accelerator`."""
        return self._accelerator.submit(work)

    def on_scorer(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """See `WorkerThreads.on_scorer`."""
        return self._scorer.submit(work)

    def on_packer(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """See `WorkerThreads.on_packer`."""
        return self._packer.submit(work)

    def abandon_accelerator(self) -> None:
        """See `WorkerThreads.abandon_accelerator`."""
        self._accelerator = self._accelerator.successor()

    def abandon_scorer(self) -> None:
        """See `WorkerThreads.abandon_scorer`."""
        self._scorer = self._scorer.successor()

    def is_accelerator(self) -> bool:
        """See `WorkerThreads.is_accelerator`."""
        return _current().thread is self._accelerator

    def close(self) -> None:
        """On the loop: end all work where it is, as the end of its process does."""
        for work in list(self._works):
            work.end()


class _Thread:
    """Runs one piece of work after the other."""

    def __init__(self, works: set[_Work]) -> None:
        self._works = works
        self._items: deque[_Work] = deque()
        self._running: _Work | None = None

    def submit(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Queue work."""
        item = _Work(self, work)
        self._items.append(item)
        if self._running is None:
            self._begin_next()
        return item.outcome

    def successor(self) -> _Thread:
        """A thread that goes on with what is queued here."""
        successor = _Thread(self._works)
        for item in self._items:
            item.thread = successor
        successor._items, self._items = self._items, deque()
        successor._begin_next()
        return successor

    def ended(self, work: _Work) -> None:
        """The work that ran is over."""
        self._works.discard(work)
        self._running = None
        self._begin_next()

    def _begin_next(self) -> None:
        while self._items and self._running is None:
            item = self._items.popleft()
            if not item.outcome.cancelled():
                self._running = item
                self._works.add(item)
                asyncio.get_running_loop().call_soon(item.resume)


class _Work:
    """One piece of work, in a greenlet of its own."""

    def __init__(self, thread: _Thread, work: Callable[[], Any]) -> None:
        self.thread = thread
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._work = work
        self._greenlet = _WorkGreenlet(self)
        self._greenlet.gr_context = copy_context()

    def resume(self) -> None:
        """On the loop: go on where it paused."""
        if not self._greenlet.dead:
            self._greenlet.switch()

    def pause(self) -> None:
        """In the work: let the loop go on."""
        parent = self._greenlet.parent
        assert parent is not None, "the loop has begun this"
        parent.switch()

    def end(self) -> None:
        """On the loop: nothing of it goes on."""
        self._greenlet.throw()

    def run(self) -> None:
        """In the greenlet."""
        try:
            result = self._work()
        except greenlet.GreenletExit:
            return
        except BaseException as error:
            if not self.outcome.done():
                self.outcome.set_exception(error)
        else:
            if not self.outcome.done():
                self.outcome.set_result(result)
        self.thread.ended(self)


class _WorkGreenlet(greenlet.greenlet):
    def __init__(self, work: _Work) -> None:
        super().__init__(work.run)
        self.work = work


def _current() -> _Work:
    current = greenlet.getcurrent()
    assert isinstance(current, _WorkGreenlet), "only work of a virtual thread can wait"
    return current.work
