"""Sessions whose program or coordinator is out of reach for a while, and what comes late."""

from __future__ import annotations

import asyncio
from pathlib import Path

from session_kit import Program, order, program, simulate

from spotlight_simulation.memory_cluster import COORDINATOR, Cluster


async def cut_off(cluster: Cluster, loop: Program, seconds: float) -> None:
    ends = (loop.system.address, "memory://coordinator")
    cluster.network.partition([ends[0]], [ends[1]])
    await asyncio.sleep(seconds)
    cluster.network.heal([ends, ends[::-1]])


def test_a_program_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(n) for n in range(1, 9)])
            await loop.done(1)
            await cut_off(cluster, loop, 30.0)
            await loop.done(8)
            await asyncio.sleep(10.0)
            assert len(loop.groups) == 8

    simulate(tmp_path, scene)


def test_a_program_that_asks_for_nothing_for_long_keeps_its_session(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await asyncio.sleep(10.0)  # it trains
            await cut_off(cluster, loop, 10.0)
            await asyncio.sleep(300.0)
            await loop.link.submit([order(1)])
            await loop.done(1)

    simulate(tmp_path, scene)


def test_what_is_lost_on_its_way_is_said_again_before_long(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(1)])
            cluster.network.faults.loss = 1.0
            await asyncio.sleep(20.0)
            cluster.network.faults.loss = 0.0
            await loop.done(1, limit_s=25.0)

    simulate(tmp_path, scene)


def test_two_losses_of_the_coordinator_are_not_counted_as_one(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(1)])
            for away_s in (55.0, 100.0):
                cluster.kill_process(COORDINATOR)
                await cluster.buried()
                await asyncio.sleep(away_s)
                await cluster.start_coordinator()
                await asyncio.sleep(2.0)
            await loop.done(1)

    simulate(tmp_path, scene)


def test_a_picture_that_comes_late_is_deleted(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(n, pictures=True, seeds=2) for n in (1, 2)])
            await asyncio.sleep(4.0)  # one batch holds both
            await loop.link.withdraw([1])
            await loop.done(1)
            await loop.link.submit([order(n) for n in range(3, 9)])
            await asyncio.sleep(5.0)
            assert not [key for key in loop.left_in_store() if key.startswith("pictures/1/")]

    simulate(tmp_path, scene)


def test_what_a_lost_worker_has_left_is_deleted_when_all_is_taken(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        async with program(cluster) as loop:
            await loop.publish(0)
            await loop.link.submit([order(1)])
            (store,) = (
                disk for name, disk in cluster.stores.all_in_use().items() if "runs" in name
            )
            store.bundles["commits/b/0/1-1-3"] = b"it did not come to say so"
            await loop.done(1)
            await asyncio.sleep(10.0)
            assert loop.left_in_store() == []

    simulate(tmp_path, scene)
