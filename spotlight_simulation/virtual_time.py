"""An asyncio event loop on which time is free: when nothing is ready, the clock jumps to the next
timer.

Actors wait by the loop's clock only, so hours of leases, back-offs and preemptions run in
milliseconds, and a run is a function of its seeds. Work for an executor runs inline, since a thread
would finish at no particular virtual time.

Sockets and pipes are looked at but never waited for; processes and real networks do not belong on
this loop.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar

from spotlight.errors import SpotlightError

Result = TypeVar("Result")


class DeadlockError(SpotlightError):
    """Nothing is ready and no timer is set, so nothing can ever happen; names the tasks that
    wait."""


class _NeverSleepingSelector(selectors.BaseSelector):
    """Looks at descriptors without waiting and advances the loop's clock by the time it was asked
    to wait."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        self._real = selectors.DefaultSelector()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready and (timeout is None or timeout > 0):
            self._advance(timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop; its clock starts at 0 and is in seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_NeverSleepingSelector(self._advance))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call `func` now, in this thread."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _advance(self, seconds: float | None) -> None:
        if seconds is not None:
            self._now += seconds
            return
        waiting = sorted(
            f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', task.get_coro())})"
            for task in asyncio.all_tasks(self)
        )
        raise DeadlockError(
            f"at {self._now:g} s nothing is ready and no timer is set; "
            f"waiting: {', '.join(waiting)}"
        )


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a new virtual-time loop until it ends. Raises `DeadlockError` when it
    cannot."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
