"""Other coordinators on the same folder of runs."""

from __future__ import annotations

import asyncio
import signal

from benchmarks.security.attack import attack, require, require_words
from benchmarks.security.network import ATTACKER
from benchmarks.security.site import Site
from spotlight.store import job_queue


@attack("a second coordinator is started on the same --runs while a job runs", stage="alone")
async def second(site: Site) -> None:
    require(not await site.submit(site.job()), "a job must run")
    queue = (site.runs / job_queue.NAME).read_bytes()
    other = site.daemon(
        ATTACKER, "spotlight-coordinator", "--listen", "127.0.0.1:0", "--runs", str(site.runs)
    )
    try:
        code = await asyncio.to_thread(other.wait, 60)
    except Exception as error:  # it did not end: it serves the same folder
        other.kill()
        require(False, error)
    said = site.log(other)
    require(code == 2 and "Traceback" not in said, said)
    require_words(said, str(site.runs), str(site.coordinator.pid))
    require((site.runs / job_queue.NAME).read_bytes() == queue, "the queue has changed")
    require((await site.status()).job == "stranger", "the first has forgotten its job")
    await site.cancel()


@attack(
    "a coordinator is killed, and the next one is to find the folder locked for ever", stage="alone"
)
async def stale_lock(site: Site) -> None:
    require(not await site.submit(site.job()), "a job must run")
    site.coordinator.send_signal(signal.SIGKILL)
    site.coordinator.wait()
    site.start_coordinator()
    async with asyncio.timeout(60):
        while True:
            require(site.coordinator.poll() is None, site.log(site.coordinator))
            try:
                status = await asyncio.wait_for(site.status(), 5)
            except Exception:
                continue
            if status.job:
                break
            await asyncio.sleep(0.1)
    require(status.job == "stranger", "the job was forgotten")
    await site.cancel()
