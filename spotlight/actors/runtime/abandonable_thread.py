"""A thread that runs one piece of work after the other. It can be abandoned in the middle of one
that may never end, such as a collective whose peer is stopped.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

ResultT = TypeVar("ResultT")
Arguments = ParamSpec("Arguments")


class AbandonableThread(Executor):
    """See the module's docstring. The interpreter does not wait for it when it exits."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._items: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(
        self,
        work: Callable[Arguments, ResultT],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Future[ResultT]:
        """Queue work."""
        future: Future[ResultT] = Future()
        with self._changed:
            self._items.append((future, partial(work, *args, **kwargs)))
            if self._thread is None:
                self._begin()
            self._changed.notify_all()
        return future

    def abandon(self) -> None:
        """Go on with what is queued in a new thread; what runs now may take as long as it likes."""
        with self._changed:
            self._begin()
            self._changed.notify_all()

    def is_current(self) -> bool:
        """Whether the caller runs in it: not in a thread that was left behind."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End after the work that runs now; what waits is cancelled."""
        with self._changed:
            self._closed = True
            for future, _ in self._items:
                future.cancel()
            self._items.clear()
            self._changed.notify_all()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while self._thread is me and not self._items and not self._closed:
                    self._changed.wait()
                if self._thread is not me or not self._items:
                    return
                future, work = self._items.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # whoever waits for it must hear of it
                    future.set_exception(error)
            del future, work  # what they hold on to is not ours while we wait


async def run_in_abandonable_thread(
    work: Callable[[], ResultT], limit_s: float, name: str
) -> ResultT:
    """What comes of `work` in a thread of its own, which is left behind when it takes too long:
    then this raises `TimeoutError`.
    """
    thread = AbandonableThread(name)
    try:
        async with asyncio.timeout(limit_s):
            return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.close()
