"""Samples and commits that the workers of other nodes leave in the store of a reserved node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from job_kit import Recorder, recorder
from msgspec.structs import replace
from runtime_kit import Cluster
from site_kit import Site

from spotlight.actors.protocol.down import DropBundles, Keeping
from spotlight.errors import TransferRefused
from spotlight.transport.tensors import upload
from spotlight.transport.tensors.shares import Share


class Depot:
    """A reserved node that works for a job."""

    def __init__(self, site: Site, runner: Recorder) -> None:
        self.site = site
        self.runner = runner

    async def begin(self, job_id: str = "job") -> None:
        await self.site.prepare(job_id, self.runner)
        await asyncio.sleep(0.1)
        share = self.site.coordinator.reports[-1].share
        assert share is not None
        self.share = Share(share)

    async def leave(self, *keys: str, number: int = 1) -> None:
        for key in keys:
            await upload(self.share.writable_by(key.split("/")[1], number), key, b"sample")

    async def keeping(self, **fields: Any) -> None:
        known = self.site.coordinator.current.job
        assert known is not None
        await self.site.plan(job=replace(known, keeping=Keeping(**fields)))
        await asyncio.sleep(0.3)

    async def drop(self, *keys: str, by: Recorder | None = None) -> None:
        (by or self.runner).tell(self.site.node, DropBundles(keys))
        await asyncio.sleep(0.1)

    async def keys(self) -> set[str]:
        return set(await self.site.store.keys("samples", "commits", "weights"))


@pytest.fixture
async def depot(tmp_path: Path) -> AsyncIterator[Depot]:
    async with Cluster() as cluster:
        site = Site()
        await site.open(cluster, tmp_path, workers=1, report_s=110.0, pool="reserved")
        await site.up("n/0")
        depot = Depot(site, await recorder(site.coordinator_system, "runner"))
        await depot.begin()
        yield depot
        await site.store.aclose()


async def test_a_spot_node_keeps_nothing_for_others(warm: Site) -> None:
    await warm.prepare()
    assert [report.share for report in warm.coordinator.reports if report.share is not None] == []


async def test_a_node_drops_what_the_runner_of_its_job_says(depot: Depot) -> None:
    await depot.leave("samples/a/0/1-1", "samples/a/0/1-2", "commits/b/0/1-3-2")
    await depot.drop("samples/a/0/1-1", "commits/b/0/1-3-2", "samples/never/there")
    assert await depot.keys() == {"samples/a/0/1-2"}


async def test_nobody_else_has_anything_dropped_nor_anything_else(depot: Depot) -> None:
    await depot.leave("samples/a/0/1-1")
    depot.site.store.put("weights/1", b"weights")
    other = await recorder(depot.site.coordinator_system, "other")
    await depot.drop("samples/a/0/1-1", by=other)
    await depot.drop("weights/1", "weights")
    assert await depot.keys() == {"samples/a/0/1-1", "weights/1"}


async def test_what_nobody_said_to_drop_goes_when_later_leases_are_needed_alone(
    depot: Depot,
) -> None:
    await depot.leave("samples/a/0/1-7", "commits/a/0/1-7-2", "samples/a/1/1-8", "samples/a/odd")
    await depot.keeping(leases_from=8)
    assert await depot.keys() == {"samples/a/1/1-8"}


async def test_nothing_is_taken_from_a_node_that_was_shown_out(depot: Depot) -> None:
    await depot.keeping(revoked={"a": 2})
    with pytest.raises(TransferRefused):
        await depot.leave("samples/a/0/1-1", number=1)
    await depot.leave("samples/b/0/1-1", number=1)
    assert await depot.keys() == {"samples/b/0/1-1"}


async def test_another_job_finds_nothing_of_the_one_before_and_has_another_share(
    depot: Depot,
) -> None:
    await depot.leave("samples/a/0/1-1")
    before = depot.share
    await depot.begin("another")
    assert await depot.keys() == set()
    assert depot.share != before


async def test_without_a_job_a_node_keeps_nothing(depot: Depot) -> None:
    await depot.leave("samples/a/0/1-1")
    await depot.site.plan(job=None, over=True)
    assert await depot.keys() == set()
    assert depot.site.coordinator.reports[-1].share is None
    with pytest.raises(TransferRefused):
        await depot.leave("samples/a/0/1-1")
