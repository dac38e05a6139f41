"""What a worker process shares between its actors: its name, its threads, whose turn it is at the
accelerator, the state it reports, and whether it is to end because it can do nothing more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import structlog

from spotlight.actors.worker.engine import Fault
from spotlight.actors.worker.threads import SystemThreads, WorkerThreads
from spotlight.errors import TransportError
from spotlight.timings import Timings
from spotlight.types import WorkerState

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")

EXIT_CODE = 70
"""The exit code of a process that ends because it can do nothing more."""
_PRECEDENCE: tuple[WorkerState, ...] = (
    "train",
    "rollout",
    "explore",
    "evaluate",
    "loading",
    "score",
)


class Turn:
    """At the accelerator; whoever has it queues work in the accelerator's thread."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._is_mine = True

    def pass_on(self) -> None:
        """The next one may queue its work behind what is queued: the accelerator does not wait
        for the loop between the two.
        """
        if self._is_mine:
            self._is_mine = False
            self._lock.release()

    async def regain(self) -> None:
        """Have the turn again, unless one has it still."""
        if not self._is_mine:
            await self._lock.acquire()
            self._is_mine = True


class WorkerContext:
    """Shared by the actors of one worker process.

    Args:
        epoch: differs for every process that bears the name.
        node: control address of the node that started it, whose word it takes.
        timings: how long its actors wait.
        limit_threads: has the thread that calls it compute with so many CPU threads; nothing by
            default.
        threads: in which it computes.
        fault_of: what an error says of the accelerator; nothing by default.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        node: str,
        limit_threads: Callable[[int], None] = lambda threads: None,
        threads: WorkerThreads | None = None,
        *,
        timings: Timings = Timings(),
        fault_of: Callable[[BaseException], Fault] = lambda error: "",
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.node = node
        self.timings = timings
        self._threads = threads or SystemThreads()
        self._limit_threads = limit_threads
        self._fault_of = fault_of
        self.ends = asyncio.Event()
        """Set when the process is to end by itself, a moment later."""
        self.ends_because = ""
        """Why; empty while it goes on."""
        self._cpu_threads = 1
        self.seconds = self._threads.seconds
        """A clock for how long work takes; read in any thread."""
        self._turn = asyncio.Lock()
        self._busy: Counter[WorkerState] = Counter()
        self._details: dict[WorkerState, str] = {}
        self._reported = self.state
        self._report: Callable[[], None] = lambda: None

    def use_threads(self, threads: int) -> None:
        """Compute with so many CPU threads from now on, whatever the process was started with."""
        self._cpu_threads = threads

    async def on_accelerator(self, work: Callable[[], ResultT]) -> ResultT:
        """Run torch work in the accelerator's thread, after what is queued there."""
        async with self.accelerator_turn():
            return await self.in_turn(work)

    @asynccontextmanager
    async def accelerator_turn(self) -> AsyncIterator[Turn]:
        """Have the accelerator for oneself, for several pieces of work (`in_turn`) between which
        the loop decides; first come, first served.
        """
        await self._turn.acquire()
        turn = Turn(self._turn)
        try:
            yield turn
        finally:
            turn.pass_on()

    def in_turn(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Queue torch work in the accelerator's thread; only within one's `accelerator_turn`."""
        threads = self._cpu_threads

        def limited() -> ResultT:
            self._limit_threads(threads)  # each time, as it may be another thread by now
            return work()

        return self._watched(self._threads.on_accelerator(limited))

    def abandon_scorer(self) -> None:
        """Go on scoring in a new thread; what runs in the old one may take as long as it likes."""
        self._threads.abandon_scorer()

    def abandon_accelerator(self) -> None:
        """Go on in a new thread; what runs in the old one may take as long as it likes."""
        self._threads.abandon_accelerator()

    def require_accelerator(self) -> None:
        """In the accelerator's thread: raises `TransportError` if it was left behind."""
        if not self._threads.is_accelerator():
            raise TransportError("this thread was left behind in an SP group that is gone")

    async def on_packer(self, work: Callable[[], ResultT]) -> ResultT:
        """Turn tensors into bytes, or bytes into tensors, beside everything else."""
        return await self._watched(self._threads.on_packer(work))

    async def on_scorer(self, work: Callable[[], ResultT]) -> ResultT:
        """Run scoring in its own thread."""
        return await self._watched(self._threads.on_scorer(work))

    def end_process(self, reason: str) -> None:
        """The process can do nothing more. It takes nothing from now on, gives back what it holds,
        says why, and ends; whether another one is started in its place is for its node to say.
        """
        if not self.ends_because:
            log.error("process_ends", worker=self.name, reason=reason)
            self.ends_because = reason
            self.ends.set()

    def _watched(self, work: asyncio.Future[ResultT]) -> asyncio.Future[ResultT]:
        """Look for the loss of the accelerator, before anybody else hears of the error: whoever
        does must know then that no request is to blame."""
        if work.done():
            self._look_for_loss(work)
        else:
            work.add_done_callback(self._look_for_loss)
        return work

    def _look_for_loss(self, work: asyncio.Future[Any]) -> None:
        error = None if work.cancelled() else work.exception()
        if error is not None and self._fault_of(error) == "accelerator":
            self.end_process(f"the accelerator is lost: {type(error).__name__}: {error}")

    @property
    def state(self) -> tuple[WorkerState, str]:
        """What the worker does: the most important of it, and the same in words."""
        idle: WorkerState = "idle"
        state = next((state for state in _PRECEDENCE if self._busy[state] > 0), idle)
        return state, self._details.get(state, "")

    def report_to(self, report: Callable[[], None]) -> None:
        """Called from now on with every change of state."""
        self._report = report

    @contextmanager
    def busy(self, state: WorkerState, detail: str = "") -> Iterator[None]:
        """The worker is in this state, unless a more important one hides it."""
        self._busy[state] += 1
        self._details[state] = detail
        self._publish()
        try:
            yield
        finally:
            self._busy[state] -= 1
            self._publish()

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    def _publish(self) -> None:
        if self.state != self._reported:
            self._reported = self.state
            self._report()
