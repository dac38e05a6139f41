"""When nodes are told of the work that waits: few at once, many of the outcome of many changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from job_kit import job, recorder
from runtime_kit import Cluster

from spotlight.actors.coordinator.tenant.node_briefing import NodeBriefing
from spotlight.timings import Timings

pytestmark = pytest.mark.virtual_time


class Shares:
    """Counts how often it is worked out what all nodes are told."""

    def __init__(self) -> None:
        self.times = 0

    def due(self, *_: object, **__: object) -> list[Any]:
        self.times += 1
        return []


class Site:
    async def open(self, cluster: Cluster) -> None:
        actor = await recorder(await cluster.system("coordinator"), "runner")
        self.shares, self.roster = Shares(), SimpleNamespace(nodes={})
        self.tenant: Any = SimpleNamespace(
            nodes=SimpleNamespace(send=lambda: None),
            publications=None,
            lent=None,
            roster=self.roster,
            shares=self.shares,
            service=SimpleNamespace(work=job().work, hub_files=()),
            timings=Timings(),
            apart=frozenset(),
            seconds_left=None,
            is_over=False,
            run_task=actor.run_task,
        )
        self.briefing = NodeBriefing(self.tenant)

    def nodes_join(self, count: int) -> None:
        for number in range(count):
            self.roster.nodes[f"n{number}"] = None
            self.briefing.share_backlog()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Cluster() as cluster:
        site = Site()
        await site.open(cluster)
        yield site


async def test_few_nodes_are_told_of_every_change_at_once(site: Site) -> None:
    site.nodes_join(20)
    assert site.shares.times == 20


async def test_many_nodes_that_join_together_are_told_the_outcome(site: Site) -> None:
    site.nodes_join(1000)
    before = site.shares.times
    assert before < 50
    await asyncio.sleep(1.0)
    assert site.shares.times == before + 1
    await asyncio.sleep(60.0)
    assert site.shares.times == before + 1


async def test_nothing_is_told_after_the_end_of_the_job(site: Site) -> None:
    site.nodes_join(1000)
    before, site.tenant.is_over = site.shares.times, True
    await asyncio.sleep(1.0)
    assert site.shares.times == before
