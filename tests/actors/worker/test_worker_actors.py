"""The actors of a worker process, and how its node learns of them."""

from __future__ import annotations

import asyncio

import pytest
from job_kit import recorder
from runtime_kit import Cluster

from spotlight.actors.protocol.up import WorkerRefs, WorkerUp
from spotlight.actors.worker.worker_actors import Introduction
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.timings import Timings

pytestmark = pytest.mark.virtual_time

TIMINGS = Timings()
CUT_S = TIMINGS.connections.connect_timeout_s + 1.0
"""Longer than a connection that is being made holds what is to be sent."""
AGAIN_S = TIMINGS.delivery.answer_limit_s + TIMINGS.delivery.retry_pause_s + 1.0


async def test_a_worker_that_is_cut_off_as_it_starts_is_known_to_its_node_once_it_is_back() -> None:
    async with Cluster() as cluster:
        there, here = await cluster.system("node"), await cluster.system("worker")
        node = await recorder(there, "node")
        up = WorkerUp(WorkerRefs("n/0", 1, *[here.ref] * 3), "key", "simulated")
        context = WorkerContext("n/0", 1, there.address, timings=TIMINGS)
        cluster.network.isolate(here.address)
        await here.spawn(lambda: Introduction(context, up), "introduction")
        await asyncio.sleep(CUT_S)
        assert node.all(WorkerUp) == []
        cluster.network.heal()
        await asyncio.sleep(AGAIN_S)
        assert node.all(WorkerUp) == [up]


async def test_a_node_that_knows_a_worker_is_not_told_again() -> None:
    async with Cluster() as cluster:
        there, here = await cluster.system("node"), await cluster.system("worker")
        node = await recorder(there, "node")
        context = WorkerContext("n/0", 1, there.address, timings=TIMINGS)
        up = WorkerUp(WorkerRefs("n/0", 1, *[here.ref] * 3), "key", "simulated")
        introduction = await here.spawn(lambda: Introduction(context, up), "introduction")
        await here.wait_stopped(introduction)
        await asyncio.sleep(AGAIN_S)
        assert node.all(WorkerUp) == [up]
