"""The runtime on a network that loses, repeats and reorders frames, and that falls apart. Every
case is one seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from runtime_kit import Accountant, Bump, Cluster, tally

from spotlight.actors.runtime import Actor, handles
from spotlight.errors import ActorError, AskTimeout
from spotlight_simulation import virtual_time
from spotlight_simulation.memory_network import Faults

SEEDS = range(25)


class Recorder(Actor):
    """Records the amounts it was told; answers nothing special."""

    def __init__(self) -> None:
        self.amounts: list[int] = []

    @handles(Bump)
    async def on_bump(self, message: Bump) -> None:
        self.amounts.append(message.amount)


@pytest.mark.virtual_time
@pytest.mark.parametrize("seed", SEEDS)
async def test_tells_arrive_at_most_once_and_in_order(seed: int) -> None:
    faults = Faults(delay_s=(0.0, 0.02), loss=0.1, duplication=0.2, reordering=0.2)
    rng = random.Random(seed)
    recorder = Recorder()
    async with Cluster(seed, faults) as cluster:
        a, b = await cluster.system("a"), await cluster.system("b")
        ref = await b.spawn(lambda: recorder, "recorder")
        for amount in range(300):
            a.tell(ref, Bump(amount))
            await asyncio.sleep(rng.uniform(0.0, 0.005))
        await asyncio.sleep(1.0)
    assert recorder.amounts == sorted(set(recorder.amounts))
    assert len(recorder.amounts) > 100


@pytest.mark.virtual_time
@pytest.mark.parametrize("seed", SEEDS)
async def test_an_ask_runs_at_most_once_however_often_it_arrives(seed: int) -> None:
    faults = Faults(duplication=0.5)
    recorder = Recorder()
    async with Cluster(seed, faults) as cluster:
        a, b = await cluster.system("a"), await cluster.system("b")
        ref = await b.spawn(lambda: recorder, "recorder")
        for amount in range(50):
            await a.ask(ref, Bump(amount), timeout_s=1.0)
        await asyncio.sleep(1.0)
        assert b.post.duplicates > 0
        # The second copy of a reply finds no ask; nothing else is lost or out of place.
        assert set(a.dead_letters.counts) <= {"late_reply"}
        assert len(b.dead_letters) == 0
    assert recorder.amounts == list(range(50))


@pytest.mark.virtual_time
@pytest.mark.parametrize("seed", SEEDS)
async def test_under_any_faults_an_ask_ends_by_its_deadline(seed: int) -> None:
    faults = Faults(delay_s=(0.0, 0.3), loss=0.3, duplication=0.3, reordering=0.3)
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    async with Cluster(seed, faults) as cluster:
        a, b = await cluster.system("a"), await cluster.system("b")
        ref = await b.spawn(Accountant, "accountant")
        loop = asyncio.get_running_loop()

        async def one(amount: int) -> None:
            await asyncio.sleep(rng.uniform(0.0, 20.0))
            began = loop.time()
            try:
                await a.ask(ref, Bump(amount), timeout_s=1.0)
                outcomes["answered"] += 1
            except ActorError as error:
                outcomes[type(error).__name__] += 1
            assert loop.time() - began <= 1.0 + 1e-6

        async def disturb() -> None:
            for _ in range(5):
                await asyncio.sleep(rng.uniform(0.0, 3.0))
                cluster.network.partition([a.address], [b.address], one_way=rng.random() < 0.5)
                await asyncio.sleep(rng.uniform(0.0, 3.0))
                cluster.network.heal()

        await asyncio.gather(disturb(), *(one(amount) for amount in range(100)))
        assert len(a.asks) == 0
    assert outcomes.total() == 100
    assert outcomes["answered"] > 0


@pytest.mark.virtual_time
async def test_a_short_partition_delays_and_loses_nothing() -> None:
    recorder = Recorder()
    async with Cluster() as cluster:
        a, b = await cluster.system("a"), await cluster.system("b")
        ref = await b.spawn(lambda: recorder, "recorder")
        await a.ask(ref, Bump(0), timeout_s=1.0)
        cluster.network.partition([a.address], [b.address])
        for amount in range(1, 20):
            a.tell(ref, Bump(amount))
        await asyncio.sleep(1.0)
        assert recorder.amounts == [0]
        cluster.network.heal()
        await asyncio.sleep(0.1)
        assert recorder.amounts == list(range(20))
        assert len(a.dead_letters) == 0


@pytest.mark.virtual_time
async def test_a_long_partition_makes_dead_letters_and_heals_for_later_messages() -> None:
    recorder = Recorder()
    async with Cluster() as cluster:
        a, b = await cluster.system("a"), await cluster.system("b")
        ref = await b.spawn(lambda: recorder, "recorder")
        await a.ask(ref, Bump(0), timeout_s=1.0)
        cluster.network.partition([a.address], [b.address])
        a.tell(ref, Bump(1))
        await asyncio.sleep(2.0)
        assert a.dead_letters.counts == {"unreachable": 1}
        cluster.network.heal()
        await a.ask(ref, Bump(2), timeout_s=1.0)
        assert recorder.amounts == [0, 2]


@pytest.mark.virtual_time
async def test_a_process_that_comes_back_is_heard_from_its_first_message_on() -> None:
    recorder = Recorder()
    async with Cluster() as cluster:
        a, b = await cluster.system("a"), await cluster.system("b")
        ref = await b.spawn(lambda: recorder, "recorder")
        for amount in range(50):
            a.tell(ref, Bump(amount))
        await asyncio.sleep(1.0)
        await a.abort()
        again = await cluster.system("a")
        again.tell(ref, Bump(50))
        await asyncio.sleep(1.0)
        assert recorder.amounts == list(range(51))


@pytest.mark.virtual_time
async def test_a_partition_in_one_direction_loses_the_connection_for_both() -> None:
    async with Cluster() as cluster:
        a, b = await cluster.system("a"), await cluster.system("b")
        ref = await b.spawn(Accountant, "accountant")
        await tally(a, ref)
        cluster.network.partition([b.address], [a.address], one_way=True)
        with pytest.raises(ActorError) as caught:
            await tally(a, ref)
        assert not isinstance(caught.value, AskTimeout)


def test_one_seed_is_one_history() -> None:
    async def history(seed: int) -> list[object]:
        faults = Faults(loss=0.1, duplication=0.1, reordering=0.1)
        recorders = [Recorder() for _ in range(3)]
        async with Cluster(seed, faults) as cluster:
            systems = [await cluster.system(name) for name in "abc"]
            refs = [
                await system.spawn(lambda recorder=recorder: recorder, "recorder")
                for system, recorder in zip(systems, recorders, strict=True)
            ]
            for amount in range(100):
                for system in systems:
                    for ref in refs:
                        system.tell(ref, Bump(amount))
                await asyncio.sleep(0.001)
            await asyncio.sleep(1.0)
            counts = [(system.post.frames_sent, system.post.frames_received) for system in systems]
        return [*(recorder.amounts for recorder in recorders), *counts]

    assert virtual_time.run(history(1)) == virtual_time.run(history(1))
    assert virtual_time.run(history(1)) != virtual_time.run(history(2))
