"""Whether a process still answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from job_kit import Recorder, recorder
from runtime_kit import Cluster

from spotlight.actors.node.liveness import until_silent
from spotlight.actors.protocol.down import WorkerPlan
from spotlight.actors.protocol.up import WorkerReport
from spotlight.actors.runtime import Message

pytestmark = pytest.mark.virtual_time

EVERY_S = 0.5
QUESTION = WorkerPlan(1)
ANSWER = WorkerReport("w", 0)


class Sleeper(Recorder):
    """Answers, unless it is told to hang, or to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = asyncio.Event()
        self.turns.set()
        self.fails = False

    async def on_message(self, message: Message) -> Message:
        assert message == QUESTION
        self.inbox.append(message)
        await self.turns.wait()
        if self.fails:
            raise RuntimeError("no answer, of a kind")
        return ANSWER


class Watch:
    """One that asks, in a process of its own, and what came of it."""

    async def open(self, cluster: Cluster) -> None:
        self.asker = await recorder(await cluster.system("asker"), "asker")
        self.sleeper = Sleeper()
        self.system = await cluster.system("sleeper")
        await self.system.spawn(lambda: self.sleeper, "sleeper")
        self.heard: list[Message] = []
        self.suspected: list[float] = []
        self.every_s = EVERY_S
        self.over = asyncio.ensure_future(
            until_silent(
                self.asker,
                self.sleeper.ref,
                lambda: QUESTION,
                every_s=lambda: self.every_s,
                silent_s=10.0,
                heard=self.heard.append,
                suspect=lambda: self.suspected.append(asyncio.get_running_loop().time()),
            )
        )
        await asyncio.sleep(3.0)


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    async with Cluster() as cluster:
        watch = Watch()
        await watch.open(cluster)
        yield watch
        watch.over.cancel()
        await asyncio.wait((watch.over,))


async def test_every_answer_is_passed_on(watch: Watch) -> None:
    assert watch.heard == [ANSWER] * len(watch.heard)
    assert 6 <= len(watch.heard) <= 7
    assert watch.suspected == []


async def test_three_questions_without_an_answer_are_suspicious_and_ten_seconds_are_the_end(
    watch: Watch,
) -> None:
    silent_at = asyncio.get_running_loop().time()
    watch.sleeper.turns.clear()
    await asyncio.sleep(1.0)
    assert watch.suspected == []
    await asyncio.sleep(1.5)
    assert len(watch.suspected) == 1
    await asyncio.wait_for(watch.over, 30.0)
    assert 9.0 < asyncio.get_running_loop().time() - silent_at < 12.0
    assert len(watch.suspected) == 1


async def test_one_who_answers_again_is_suspected_anew_when_it_falls_silent_again(
    watch: Watch,
) -> None:
    for suspicions in (1, 2, 3):
        watch.sleeper.turns.clear()
        await asyncio.sleep(4.0)
        assert len(watch.suspected) == suspicions
        heard = len(watch.heard)
        watch.sleeper.turns.set()
        await asyncio.sleep(4.0)
        assert len(watch.heard) > heard
    assert not watch.over.done()


async def test_an_error_is_an_answer(watch: Watch) -> None:
    watch.sleeper.fails = True
    await asyncio.sleep(60.0)
    assert watch.suspected == []
    assert not watch.over.done()


async def test_one_that_is_gone_is_suspected_too(watch: Watch) -> None:
    await watch.system.stop(watch.sleeper.ref)
    await asyncio.sleep(5.0)
    assert len(watch.suspected) == 1
    await asyncio.wait_for(watch.over, 30.0)


async def test_it_asks_as_often_as_it_is_told_to_now(watch: Watch) -> None:
    watch.every_s = 2.0
    await asyncio.sleep(1.0)
    asked = len(watch.sleeper.inbox)
    await asyncio.sleep(20.0)
    assert len(watch.sleeper.inbox) - asked == 10
