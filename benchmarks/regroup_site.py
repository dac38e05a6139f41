"""A node whose workers denoise in SP groups, for `benchmarks.regroup`: its members can be killed,
stopped and resumed, and all that happens is known with its time on CLOCK_MONOTONIC.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import structlog

from benchmarks.preemption_site import LIMIT_S, Site, keys_for, make_requests
from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol.down import Demand, DemandClass
from spotlight.timings import Timings
from spotlight.transport.control.keys import place_of
from spotlight.transport.tensors import BundleStore
from spotlight.types import SamplingSettings
from spotlight_simulation.logging_for_now import logging_by

WORKERS = 4
HEADS = 4
"""Attention heads of the example's transformer."""
BACKLOG = 6
"""Batches that wait or are in work, so that a new group always finds some."""
LOOK_S = 0.005
SETTLED_STEPS = 10

Record = dict[str, Any]
"""A line of the trace, see `benchmarks.traced_worker`."""


class News(NamedTuple):
    """What the node came to know of a worker: that its process `ended`, that it is `silent`, that
    it `answers` again, or that it is `ready` for the job.
    """

    kind: str
    worker: str
    t: float


class NodeLog:
    """What a node logs of its workers and their groups."""

    def __init__(self) -> None:
        self.news: list[News] = []
        self.epoch = 0
        """The epoch of the latest plan."""
        self.groups: Mapping[tuple[str, ...], int] = {}
        """The groups as planned, with their epochs."""
        self._workers: frozenset[str] = frozenset()
        self._ready: set[str] = set()

    @property
    def known(self) -> list[str]:
        """Workers whose processes have said that they are up."""
        return sorted(self._workers)

    @property
    def ready(self) -> list[str]:
        """Workers that can be grouped, if they answer."""
        return sorted(self._ready)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read all that this process logs from now on; errors alone are still written."""
        with logging_by([self._read, *structlog.get_config()["processors"]]):
            yield

    def _read(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        match event["event"]:
            case "groups_planned":
                workers = frozenset(event["workers"])
                for worker in self._workers - workers:
                    self._note("ended", worker)
                self._ready &= workers
                self._workers = workers
                self.epoch, self.groups = event["epoch"], event["groups"]
            case "worker_silent":
                self._note("silent", event["worker"])
            case "worker_answers":
                self._note("answers", event["worker"])
            case "worker_ready" if event["job"]:
                self._ready.add(event["worker"])
                self._note("ready", event["worker"])
            case "worker_ready":
                self._ready.discard(event["worker"])
        if method not in ("error", "critical", "exception"):
            raise structlog.DropEvent
        return event

    def _note(self, kind: str, worker: str) -> None:
        self.news.append(News(kind, worker, time.monotonic()))


class GroupSite(Site):
    """One node; `settings` are those of every request."""

    def __init__(self, folder: Path, settings: SamplingSettings) -> None:
        super().__init__(folder, WORKERS)
        self.submitted: list[str] = []
        self.grouping = NodeLog()
        self.wished = WORKERS
        """The degree that the node is told."""
        self._settings = settings
        self._records: list[Record] = []
        self._file = self.trace.open("rb")
        self._tasks: list[asyncio.Task[None]] = []
        self._pauses: list[tuple[float, float]] = []
        """The pauses of the loop: until when, and how long."""
        self._rounds = 0
        self._feeds = True
        self._reading = ExitStack()

    # --- what it is made of ---

    async def _add_node(self, name: str) -> None:
        self._tasks = [asyncio.create_task(self._feed()), asyncio.create_task(self._watch_loop())]
        self._reading.enter_context(self.grouping.reading())
        self.began = time.monotonic()
        await super()._add_node(name)

    def make_node(self, settings: NodeSettings, store: BundleStore) -> NodeScheduler:
        """See `Site.make_node`."""
        times = Timings()
        # A node gives up workers that end often within this time: so it never does.
        short_s = 5 * times.node.restart_pause_s
        times = replace(times, node=replace(times.node, restart_window_s=short_s))
        return NodeScheduler(settings, store, self.launcher, keys_for, timings=times)

    def joined(self, name: str) -> None:
        """See `Site.joined`."""
        self.wish(self.wished)

    def up(self) -> bool:
        """Whether all workers denoise together."""
        return any(record["members"] == WORKERS for record in self.look("step"))

    async def close(self) -> None:
        """See `Site.close`."""
        for task in self._tasks:
            task.cancel()
        self._file.close()
        await super().close()
        self._reading.close()

    async def _feed(self) -> None:
        while self._feeds:
            batch = self._settings.micro_batch
            if len(self.submitted) - len(self.finished) <= (BACKLOG - 1) * batch:
                self._rounds += 1
                requests = make_requests(self._settings, self._rounds, batch)
                self.submitted += [request.id for request in requests]
                self.submit(requests)
            else:
                await asyncio.sleep(0.1)

    async def _watch_loop(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            if now - before > 2 * LOOK_S:
                self._pauses.append((now, now - before - LOOK_S))

    # --- what can be done to it ---

    def wish(self, degree: int) -> None:
        """Have the node form groups of that degree, as far as it has members."""
        self.wished = degree
        guess = {size: 0.01 / size for size in (1, 2, 4)}
        work = DemandClass("rollout", BACKLOG, self._settings.steps, guess)
        demand = Demand("job", HEADS, (work,), None, degree, ())
        for name in self.nodes:
            self.coordinator.plans.demand(name, demand)
        self.coordinator.plans.send()

    def stop(self, worker: str) -> None:
        """SIGSTOP: it hangs."""
        os.kill(self.pid(worker), signal.SIGSTOP)

    def resume(self, worker: str) -> None:
        """SIGCONT."""
        os.kill(self.pid(worker), signal.SIGCONT)

    async def finish(self, limit_s: float = LIMIT_S) -> None:
        """Submit nothing more, and wait until all is done, or for so long."""
        self._feeds = False
        with suppress(TimeoutError):
            await self.until(lambda: len(self.finished) == len(self.submitted), limit_s)

    # --- what is seen of it ---

    def pid(self, worker: str) -> int:
        """Of its latest process."""
        return self.launcher.processes[worker].pid

    def is_running(self, worker: str) -> bool:
        """Whether its latest process has not ended, as far as is known; it may be stopped."""
        try:
            return psutil.Process(self.pid(worker)).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def control_ports(self) -> set[int]:
        """Where the node and its workers are dialled."""
        workers = self.coordinator.workers("node-0")
        addresses = [self.system.address, *(refs.leader.address for refs in workers)]
        return {int(place_of(address).rpartition(":")[2]) for address in addresses}

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """As planned, the largest first."""
        return sorted(self.grouping.groups, key=lambda group: (-len(group), group))

    @property
    def epoch(self) -> int:
        """Of the latest plan."""
        return self.grouping.epoch

    def look(self, kind: str) -> list[Record]:
        """All lines so far that have this key."""
        self._read()
        return [record for record in self._records if kind in record]

    def forget(self) -> None:
        """Lines and pauses so far are not looked at any more."""
        self._read()
        self._records.clear()
        self._pauses.clear()

    def longest_pause_s(self, begin: float, end: float) -> float:
        """How long the loop of the node and the dispatcher was kept from turning, at most."""
        return max((pause for until, pause in self._pauses if begin <= until <= end), default=0.0)

    def _read(self) -> None:
        while (line := self._file.readline()).endswith(b"\n"):
            self._records.append(json.loads(line))
        self._file.seek(-len(line), os.SEEK_CUR)  # the rest of it comes later

    async def first_step(self, members: int, epoch: int = 0) -> Record:
        """The first step that a group of so many took, whose epoch is larger; waits for it."""
        found: list[Record] = []

        def is_there() -> bool:
            found.extend(
                record
                for record in self.look("step")
                if record["members"] == members and record["epoch"] > epoch
            )
            return bool(found)

        await self.until(is_there)
        return found[0]

    async def settle(self) -> list[tuple[str, ...]]:
        """Wait until all workers are in groups of the wished degree that take steps; the groups."""
        self.forget()

        def is_settled() -> bool:
            steps = [record["epoch"] for record in self.look("step")]
            return (
                all(
                    len(group) == self.wished and steps.count(epoch) >= SETTLED_STEPS
                    for group, epoch in self.grouping.groups.items()
                )
                and len(self.grouping.known) == WORKERS
            )

        await self.until(is_settled)
        return self.groups

    async def hear(self, kind: str, worker: str, since: float) -> float:
        """When the node came to know this of a worker; waits for it."""

        def times() -> list[float]:
            news = self.grouping.news
            return [it.t for it in news if it[:2] == (kind, worker) and it.t >= since]

        await self.until(times)
        return times()[0]

    async def until(self, condition: Callable[[], Any], limit_s: float = LIMIT_S) -> float:
        """Wait until it holds, without keeping a processor busy; see `Site.until`."""
        async with asyncio.timeout(limit_s):
            while not condition():  # noqa: ASYNC110 - things of other actors
                await asyncio.sleep(LOOK_S)
        return asyncio.get_running_loop().time()
