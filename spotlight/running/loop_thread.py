"""An event loop in a thread of its own, for programs that call and wait.

The program may run a loop itself, as a notebook does: this one is another, in another thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Self, TypeVar

ResultT = TypeVar("ResultT")


class LoopThread:
    """A thread that runs coroutines of others on one loop, as long as the context lasts."""

    def __enter__(self) -> Self:
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="spotlight-loop", daemon=True
        )
        self._thread.start()
        self._loop = started.result()
        self.is_running = True
        return self

    def __exit__(self, *error: object) -> None:
        """What still runs is cancelled, and ends first."""
        self.is_running = False
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def call(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Its result; one that is interrupted here is cancelled there, and ends first.

        Raises `concurrent.futures.CancelledError` if it was cancelled otherwise.
        """
        begun: Future[asyncio.Task[ResultT]] = Future()
        ended: Future[None] = Future()

        def begin() -> None:
            task = self._loop.create_task(coroutine)
            task.add_done_callback(lambda _: ended.set_result(None))
            begun.set_result(task)

        self._loop.call_soon_threadsafe(begin)
        task = begun.result()
        try:
            ended.result()
        except BaseException:
            self._loop.call_soon_threadsafe(task.cancel)
            ended.result()
            raise
        if task.cancelled():
            raise CancelledError
        return task.result()

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            loop = runner.get_loop()
            started.set_result(loop)
            loop.run_forever()
