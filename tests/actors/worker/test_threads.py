"""The threads of a worker process."""

from __future__ import annotations

import asyncio
import threading
import time

from spotlight.actors.worker.threads import SystemThreads


async def test_a_worker_that_has_begun_starts_no_thread_with_its_first_work_of_any_kind() -> None:
    threads = SystemThreads()
    threads.begin()
    try:
        there = threading.active_count()
        work = [threads.on_accelerator, threads.on_scorer, threads.on_packer]
        reads = [asyncio.to_thread(time.sleep, 0.01) for _ in range(20)]
        await asyncio.gather(*(on(threading.get_ident) for on in work), *reads)
        assert threading.active_count() == there
    finally:
        threads.close()
        await asyncio.get_running_loop().shutdown_default_executor()
