"""The machines of a spot market on a simulated cluster: they boot, have notice and are taken when a
schedule says so. What crashes on top is started again, as the operator of a machine would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from spotlight.jobs import JobSpec
from spotlight_simulation.market.schedule import Schedule, Stay
from spotlight_simulation.memory_cluster import COORDINATOR, Cluster
from spotlight_simulation.processes import NodeSpec

_RESTART_S = 2.0
"""How long it takes until somebody starts a process again that crashed. [s]"""


class Crash(NamedTuple):
    """A process ends at a moment, whatever the market does."""

    at_s: float
    process: str
    """The name of a node, or of the coordinator."""


def nodes_of(job: JobSpec, schedule: Schedule) -> tuple[NodeSpec, ...]:
    """The machines of a job on a schedule: its reserved nodes, and one for each stay."""
    reserved, workers = job.pools.reserved, job.pools.spot.workers
    return (
        *(NodeSpec(f"reserved-{n}", "reserved", reserved.workers) for n in range(reserved.nodes)),
        *(NodeSpec(stay.node, "spot", workers) for stay in schedule.stays),
    )


class MarketFleet:
    """The nodes of a cluster whose spot nodes are the stays of a schedule.

    Args:
        boot_s: from the start of a machine until it runs a program; it is billed meanwhile.
    """

    def __init__(
        self,
        cluster: Cluster,
        schedule: Schedule,
        *,
        boot_s: float,
        crashes: Sequence[Crash] = (),
    ) -> None:
        self._cluster = cluster
        self._schedule = schedule
        self._boot_s = boot_s
        self._crashes = crashes
        self._here = {COORDINATOR}
        """The processes whose machines are there and have booted."""
        self.struck: list[str] = []
        """The processes that a crash has ended, in order."""

    @asynccontextmanager
    async def there(self) -> AsyncIterator[None]:
        """Coordinator and reserved nodes run, and spot nodes come and go. Raises what went wrong
        with any of them."""
        await self._begin(COORDINATOR)
        for node in self._cluster.nodes:
            if node.pool == "reserved":
                await self._begin(node.name)
        lives = [self._live(stay) for stay in self._schedule.stays]
        crashes = [self._crash(crash) for crash in self._crashes]
        tasks = [asyncio.create_task(each) for each in (*lives, *crashes)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _begin(self, process: str, machine_s: float = 0.0) -> None:
        self._here.add(process)
        await self._start(process, machine_s)

    async def _start(self, process: str, machine_s: float = 0.0) -> None:
        if process == COORDINATOR:
            await self._cluster.start_coordinator()
        else:
            await self._cluster.start_node(process, machine_s)

    async def _live(self, stay: Stay) -> None:
        ready_s = stay.from_s + self._boot_s
        if ready_s >= stay.until_s:
            return  # it is billed, and never does anything
        await self._sleep_until(ready_s)
        await self._begin(stay.node, self._boot_s)
        if not stay.is_taken:
            return
        if stay.notice_s:
            await self._sleep_until(stay.until_s - stay.notice_s)
            self._cluster.cloud.give_notice(stay.node, stay.until_s - self._cluster.loop.time())
        await self._sleep_until(stay.until_s)
        self._here.discard(stay.node)
        self._cluster.kill_process(stay.node)

    async def _crash(self, crash: Crash) -> None:
        await self._sleep_until(crash.at_s)
        if self._cluster.kill_process(crash.process):
            self.struck.append(crash.process)
            await asyncio.sleep(_RESTART_S)
            await self._cluster.buried()
            if crash.process in self._here and not self._cluster.is_up(crash.process):
                await self._start(crash.process)

    async def _sleep_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._cluster.loop.time()))
