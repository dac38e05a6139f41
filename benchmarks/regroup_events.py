"""Members that are killed, stopped, resumed and joining at random while they denoise, for
`benchmarks.regroup`: does the work go on, is it all done once, and what is left behind?
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.regroup_site import LOOK_S, WORKERS, GroupSite

PAUSE_S = 0.4
"""Mean time between two events; it is drawn anew each time, so that many fall into a regrouping."""
KILLS = 0.06
"""Share of kills, of the events that strike a worker which runs or one that is stopped."""
STANDSTILL_S = 60.0
LEAVE_S, QUICK_LEAVE_S = 5, 1
LINK_DESCRIPTORS = 4
"""Descriptors of a control connection in the process that dialled it: the others only have its TCP
socket."""


class Belongings(NamedTuple):
    """What processes hold."""

    processes: int
    threads: int
    sockets: int
    """Sockets that listen."""
    descriptors: int
    """Descriptors without those of connections that stand: which of two processes dials the other,
    or whether both do, is chance."""


def belongings(pid: int, control: Collection[int] = ()) -> Belongings:
    """Of a process itself, and the number of its descendants; `control` are the ports at which
    others of ours are dialled.
    """
    process = psutil.Process(pid)
    connections = process.net_connections("tcp")
    standing = [it for it in connections if it.status == psutil.CONN_ESTABLISHED]
    dialled = [it for it in standing if it.raddr.port in control]
    return Belongings(
        len(process.children(recursive=True)),
        process.num_threads(),
        sum(it.status == psutil.CONN_LISTEN for it in connections),
        process.num_fds() - len(standing) - (LINK_DESCRIPTORS - 1) * len(dialled),
    )


def shared_memory() -> set[str]:
    """Names in /dev/shm that this process made, or one that has ended: names hold the id."""
    names = {path.name for path in Path("/dev/shm").glob("spotlight-*")}
    makers = {name: int(next(filter(str.isdigit, name.split("-")), "0")) for name in names}
    return {
        name for name, pid in makers.items() if pid == os.getpid() or not psutil.pid_exists(pid)
    }


class Events:
    """Strikes the site's workers. One that is ready and runs is always left."""

    def __init__(self, site: GroupSite, rng: random.Random) -> None:
        self.counts = Counter(kill=0, stop=0, resume=0, join=0)
        self.longest_standstill_s = 0.0
        """The longest time without a completed step of any group."""
        self._site = site
        self._rng = rng
        self._stopped: set[str] = set()
        self._killed: set[int] = set()
        """Process ids; the node may not know yet."""
        self._began = self._last_step = time.monotonic()

    async def run(self, count: int, *, kills: bool) -> None:
        """So many more. Raises `RuntimeError` when nobody denoises for a minute."""
        site, until = self._site, self._done() + count
        self._last_step = time.monotonic()
        try:
            while self._done() < until:
                await self._watch(self._rng.expovariate(1 / PAUSE_S))
                self._strike(kills=kills)
        finally:
            for worker in sorted(self._stopped):
                if site.is_running(worker):
                    site.resume(worker)
            self._stopped.clear()

    def _done(self) -> int:
        joins = [news for news in self._site.grouping.news if news.kind == "ready"]
        self.counts["join"] = sum(news.t > self._began for news in joins)
        return self.counts.total()

    async def _watch(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            steps = [self._last_step, *(record["t"] for record in self._site.look("step"))]
            self._site.forget()
            pauses = [after - before for before, after in pairwise(sorted(steps))]
            self._last_step = max(steps)
            pauses.append(now - self._last_step)
            self.longest_standstill_s = max(self.longest_standstill_s, *pauses)
            if now - self._last_step > STANDSTILL_S:
                raise RuntimeError(
                    f"no step for {STANDSTILL_S:g} s after {dict(self.counts)}; groups"
                    f" {self._site.groups}, stopped {sorted(self._stopped)}"
                )
            await asyncio.sleep(LOOK_S)

    def _strike(self, *, kills: bool) -> None:
        site, rng = self._site, self._rng
        running = {
            worker
            for worker in site.grouping.known
            if site.is_running(worker) and site.pid(worker) not in self._killed
        }
        self._stopped &= running  # the node ends what hangs for long
        if not running:
            return
        worker = rng.choice(sorted(running))
        killed = kills and rng.random() < KILLS
        able = [name for name in site.grouping.ready if name in running - self._stopped]
        if worker not in self._stopped and set(able) <= {worker}:
            if not self._stopped:
                return
            worker, killed = rng.choice(sorted(self._stopped)), False
        was_stopped = worker in self._stopped
        self._stopped.discard(worker)
        if killed:
            site.kill(worker)
            self._killed.add(site.pid(worker))
            self.counts["kill"] += 1
        elif was_stopped:
            site.resume(worker)
            self.counts["resume"] += 1
        else:
            site.stop(worker)
            self._stopped.add(worker)
            self.counts["stop"] += 1


async def survivors(site: GroupSite, leave_s: int) -> list[Belongings]:
    """What each worker holds once all denoise together: the least within so many seconds, in which
    what was left behind ends.
    """
    await site.settle()
    pids = [site.pid(f"node-0/{number}") for number in range(WORKERS)]
    control = site.control_ports()
    least = [belongings(pid, control) for pid in pids]
    for _ in range(leave_s):
        await asyncio.sleep(1.0)
        now = [belongings(pid, control) for pid in pids]
        least = [Belongings(*map(min, one, two)) for one, two in zip(least, now, strict=True)]
    return least
