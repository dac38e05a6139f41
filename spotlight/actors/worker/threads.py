"""The threads of a worker: one at the accelerator, one that scores, one that packs, and a few in
which its loop reads and checks bundles.

So the actors' loop always answers, and the accelerator never waits for bytes. The accelerator's
thread that is stuck in a collective is left behind for a new one, and so is the scorer's that is
stuck in a scorer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from spotlight.actors.runtime.abandonable_thread import AbandonableThread

ResultT = TypeVar("ResultT")

_READERS = 6
"""They work on several bundles at once: samples to train on, commits to deliver."""


class WorkerThreads(Protocol):
    """Each runs one piece of work after the other."""

    def on_accelerator(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Queue work in the accelerator's thread."""
        ...

    def on_scorer(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Queue scoring."""
        ...

    def on_packer(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Queue what turns tensors into bytes, or bytes into tensors."""
        ...

    def abandon_accelerator(self) -> None:
        """Go on in a new thread; what runs in the old one may take as long as it likes."""
        ...

    def abandon_scorer(self) -> None:
        """The same for the scorer's."""
        ...

    def is_accelerator(self) -> bool:
        """Whether the caller runs in the accelerator's thread, and not in one left behind."""
        ...

    def seconds(self) -> float:
        """A clock for how long work takes; read in any thread."""
        ...

    def close(self) -> None:
        """Let the threads end."""
        ...


class SystemThreads:
    """Those of the operating system; see `WorkerThreads`."""

    def __init__(self) -> None:
        self._accelerator = AbandonableThread("accelerator")
        self._scorer = AbandonableThread("scorer")
        self._packer = ThreadPoolExecutor(1, thread_name_prefix="packer")

    def begin(self) -> None:
        """Start all of them now, those of the running loop (`asyncio.to_thread`) too, and not each
        with its first work: so what a process holds does not grow as it works.
        """
        for one in (self._accelerator, self._scorer, self._packer):
            one.submit(int)
        readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reader")
        all_there = threading.Barrier(_READERS)
        for _ in range(_READERS):
            readers.submit(all_there.wait)  # a thread that were free would be used again
        asyncio.get_running_loop().set_default_executor(readers)

    def on_accelerator(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """See `WorkerThreads.on_accelerator`."""
        return asyncio.get_running_loop().run_in_executor(self._accelerator, work)

    def on_scorer(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """See `WorkerThreads.on_scorer`."""
        return asyncio.get_running_loop().run_in_executor(self._scorer, work)

    def on_packer(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """See `WorkerThreads.on_packer`."""
        return asyncio.get_running_loop().run_in_executor(self._packer, work)

    def abandon_accelerator(self) -> None:
        """See `WorkerThreads.abandon_accelerator`."""
        self._accelerator.abandon()

    def abandon_scorer(self) -> None:
        """See `WorkerThreads.abandon_scorer`."""
        self._scorer.abandon()

    def is_accelerator(self) -> bool:
        """See `WorkerThreads.is_accelerator`."""
        return self._accelerator.is_current()

    def seconds(self) -> float:
        """See `WorkerThreads.seconds`; the loop's clock may stand while its thread sleeps."""
        return time.perf_counter()

    def close(self) -> None:
        """See `WorkerThreads.close`."""
        self._accelerator.close()
        self._scorer.close()
        self._packer.shutdown(wait=False, cancel_futures=True)
