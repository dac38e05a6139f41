"""Where the workers of each node leave what they made, and with which token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from job_kit import STORE, Recorder, job, recorder
from runtime_kit import Cluster
from town_kit import Town

from spotlight.actors.protocol.down import NodePlan
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.protocol.users import CancelJob
from spotlight.actors.runtime import ActorSystem
from spotlight.types import StoreEndpoint

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    """A job that waits for trainers, so that nothing else happens."""
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        await town.submit(job())
        yield town
        await town.ask(CancelJob())
        await town.ended()


async def node(town: Town, name: str, process: str) -> tuple[Recorder, ActorSystem]:
    """A spot node that keeps what it is told."""
    system = await town.cluster.system(process)
    scheduler = await recorder(system, "node")
    coordinator = system.well_known(town.system.address, "coordinator")
    scheduler.tell(coordinator, NodeReport(1, name, "spot", scheduler.ref, (), STORE))
    await asyncio.sleep(0.1)
    return scheduler, system


def sink(scheduler: Recorder) -> StoreEndpoint:
    job = scheduler.last(NodePlan).job
    assert job is not None
    return job.membership.sink


async def test_every_node_gets_a_token_of_its_own(town: Town) -> None:
    one, _ = await node(town, "one", "one")
    other, _ = await node(town, "other", "other")
    assert sink(one).place == sink(other).place
    assert sink(one).token != sink(other).token


async def test_a_node_that_does_not_agree_is_told_the_same_again(town: Town) -> None:
    one, system = await node(town, "one", "one")
    before = one.last(NodePlan)
    coordinator = system.well_known(town.system.address, "coordinator")
    again = NodeReport(2, "one", "spot", one.ref, (), STORE)
    assert await one.ask(coordinator, again, timeout_s=5.0) == before


async def test_the_token_of_a_node_that_is_gone_is_of_no_use_and_it_comes_back_with_another(
    town: Town,
) -> None:
    one, system = await node(town, "one", "one")
    await system.abort()
    await asyncio.sleep(60.0)
    back, _ = await node(town, "one", "one again")
    assert sink(back).token != sink(one).token
