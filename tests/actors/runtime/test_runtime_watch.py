"""Death watch: exactly one `Down`, whatever happens."""

from __future__ import annotations

import asyncio
import random

import pytest
from runtime_kit import Accountant, Cluster, Explode, ReadTally, Watcher

from spotlight.actors.runtime import Actor, ActorSystem, Down, handles
from spotlight.transport.control import ActorRef
from spotlight_simulation.memory_network import Faults

pytestmark = pytest.mark.virtual_time


async def watch(system: ActorSystem, *refs: ActorRef) -> Watcher:
    watcher = Watcher(*refs)
    await system.spawn(lambda: watcher, f"watcher-{len(system.cells)}")
    await asyncio.sleep(0.1)
    return watcher


@pytest.fixture(params=["one process", "two processes"])
def there(request: pytest.FixtureRequest) -> str:
    return "here" if request.param == "one process" else "there"


async def systems(cluster: Cluster, there: str) -> tuple[ActorSystem, ActorSystem]:
    here = await cluster.system("here")
    return here, here if there == "here" else await cluster.system(there)


async def test_a_stop_is_one_down(there: str) -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, there)
        ref = await b.spawn(Accountant, "accountant")
        watcher = await watch(a, ref)
        await b.stop(ref)
        await asyncio.sleep(60.0)
        assert watcher.downs == [Down(ref, "stopped")]


async def test_a_crash_is_one_down(there: str) -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, there)
        ref = await b.spawn(Accountant, "accountant")
        watcher = await watch(a, ref)
        a.tell(ref, Explode("boom"))
        await asyncio.sleep(60.0)
        assert watcher.downs == [Down(ref, "crashed")]


async def test_watching_an_ended_actor_is_a_down_with_its_reason(there: str) -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, there)
        stopped = await b.spawn(Accountant, "stopped")
        crashed = await b.spawn(Accountant, "crashed")
        await b.stop(stopped)
        b.tell(crashed, Explode("boom"))
        await b.wait_stopped(crashed)
        watcher = await watch(a, stopped, crashed)
        assert watcher.downs == [Down(stopped, "stopped"), Down(crashed, "crashed")]


async def test_watching_twice_is_watching_once(there: str) -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, there)
        ref = await b.spawn(Accountant, "accountant")
        watcher = await watch(a, ref, ref)
        await b.stop(ref)
        await asyncio.sleep(60.0)
        assert watcher.reasons == ["stopped"]


async def test_a_watch_of_a_well_known_name_is_answered_under_that_reference(there: str) -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, there)
        ref = await b.spawn(Accountant, "accountant")
        well_known = a.well_known(b.address, "accountant")
        watcher = await watch(a, well_known)
        await b.stop(ref)
        await asyncio.sleep(1.0)
        assert watcher.downs == [Down(well_known, "stopped")]


async def test_a_down_can_be_followed_by_another_watch(there: str) -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, there)
        ref = await b.spawn(Accountant, "accountant")
        watcher = await watch(a, ref)
        await b.stop(ref)
        await watcher.first_down.wait()
        watcher.watch(ref)
        await asyncio.sleep(1.0)
        assert watcher.reasons == ["stopped", "stopped"]


async def test_a_down_overtakes_ordinary_messages_even_when_the_mailbox_is_full() -> None:
    async with Cluster() as cluster:
        system = await cluster.system("here")
        ref = await system.spawn(Accountant, "accountant")
        order: list[str] = []
        gate = asyncio.Event()

        class Busy(Actor):
            async def started(self) -> None:
                self.watch(ref)
                await gate.wait()

            @handles(ReadTally)
            async def on_read(self, message: ReadTally) -> None:
                order.append("ordinary")

            @handles(Down)
            async def on_down(self, message: Down) -> None:
                order.append("down")

        spawning = asyncio.ensure_future(system.spawn(Busy, "busy", mailbox=1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        system.tell(system.well_known(system.address, "busy"), ReadTally())
        await system.stop(ref)
        gate.set()
        await spawning
        await asyncio.sleep(0.1)
        assert order == ["down", "ordinary"]


async def test_a_killed_process_is_one_down_for_each_watched_actor() -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, "there")
        refs = [await b.spawn(Accountant, name) for name in ("one", "two", "three")]
        watcher = await watch(a, *refs)
        await b.abort()
        await asyncio.sleep(60.0)
        assert sorted(watcher.downs, key=str) == sorted(
            (Down(ref, "unreachable") for ref in refs), key=str
        )


async def test_a_process_that_closes_reports_its_actors_as_stopped() -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, "there")
        ref = await b.spawn(Accountant, "accountant")
        watcher = await watch(a, ref)
        await b.aclose()
        await asyncio.sleep(60.0)
        assert watcher.reasons == ["stopped"]


async def test_a_frozen_process_is_a_down_after_the_time_out() -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, "there")
        ref = await b.spawn(Accountant, "accountant")
        watcher = await watch(a, ref)
        cluster.network.isolate(b.address)
        before = asyncio.get_running_loop().time()
        await watcher.first_down.wait()
        assert asyncio.get_running_loop().time() - before == pytest.approx(1.5, abs=0.1)
        cluster.network.heal()
        await asyncio.sleep(60.0)
        assert watcher.reasons == ["unreachable"]


async def test_watching_an_actor_of_a_process_that_never_was_is_a_down() -> None:
    async with Cluster() as cluster:
        a = await cluster.system("here")
        watcher = await watch(a, ActorRef("memory://nowhere", "actor", 77))
        await asyncio.sleep(60.0)
        assert watcher.reasons == ["unreachable"]


async def test_watching_an_actor_of_a_former_process_at_the_same_address_is_a_down() -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, "there")
        ref = await b.spawn(Accountant, "accountant")
        await b.abort()
        successor = await cluster.system("there")
        await successor.spawn(Accountant, "accountant")
        watcher = await watch(a, ref)
        await asyncio.sleep(60.0)
        assert watcher.reasons == ["unreachable"]


async def test_the_loss_of_a_former_process_is_no_down_for_its_successor() -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, "there")
        former = await b.spawn(Accountant, "accountant")
        watcher = await watch(a, former)
        await b.abort()
        successor = await cluster.system("there")
        ref = await successor.spawn(Accountant, "accountant")
        watcher.watch(ref)  # before the loss of the former process is known here
        await asyncio.sleep(60.0)
        assert watcher.downs == [Down(former, "unreachable")]
        await successor.stop(ref)
        await asyncio.sleep(60.0)
        assert watcher.downs == [Down(former, "unreachable"), Down(ref, "stopped")]


async def test_the_watches_of_a_lost_process_are_forgotten() -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, "there")
        ref = await b.spawn(Accountant, "accountant")
        await watch(a, ref)
        await a.abort()
        await asyncio.sleep(5.0)
        sent = b.post.frames_sent
        await b.stop(ref)
        assert b.post.frames_sent == sent


async def test_a_short_partition_is_no_down() -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, "there")
        ref = await b.spawn(Accountant, "accountant")
        watcher = await watch(a, ref)
        cluster.network.isolate(b.address)
        await asyncio.sleep(1.0)
        cluster.network.heal()
        await asyncio.sleep(60.0)
        assert watcher.downs == []
        await a.ask(ref, ReadTally(), timeout_s=1.0)


async def test_an_ended_watcher_leaves_no_watch_behind() -> None:
    async with Cluster() as cluster:
        a, b = await systems(cluster, "there")
        ref = await b.spawn(Accountant, "accountant")
        watcher = await watch(a, ref)
        await a.stop(watcher.ref)
        await asyncio.sleep(1.0)
        await b.stop(ref)
        await asyncio.sleep(1.0)
        assert len(a.dead_letters) == len(b.dead_letters) == 0


@pytest.mark.parametrize("seed", range(20))
async def test_under_loss_and_duplication_there_is_still_exactly_one_down(seed: int) -> None:
    faults = Faults(loss=0.3, duplication=0.3, reordering=0.3)
    rng = random.Random(seed)
    async with Cluster(seed, faults) as cluster:
        a, b = await systems(cluster, "there")
        refs = [await b.spawn(Accountant, f"accountant-{number}") for number in range(8)]
        watcher = await watch(a, *refs)
        for ref in refs:
            await asyncio.sleep(rng.uniform(0.0, 3.0))
            await b.stop(ref)
        await asyncio.sleep(300.0)
        assert sorted(down.ref.name for down in watcher.downs) == [ref.name for ref in refs]
        assert set(watcher.reasons) == {"stopped"}
