"""The reward worker: a failure is reported as a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from job_kit import STORE, Recorder, job, recorder
from runtime_kit import Cluster

from spotlight.actors.protocol import (
    EndJob,
    Membership,
    PrepareJob,
    PullScores,
    Receipt,
    Scored,
    ScoreFailed,
    ScoreGrant,
)
from spotlight.actors.protocol.delivery import AWAY_LIMIT_S
from spotlight.actors.runtime import Message
from spotlight.actors.worker.reward_worker import RewardWorker
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import MissingDependency, ScoringError
from spotlight.transport.tensors import BundleStore
from spotlight.transport.tensors.bundles import pack
from spotlight.types import BundleOffer

pytestmark = pytest.mark.virtual_time


class Scorer:
    """Gives what it is told to give."""

    answer: object = ScoringError("the model is gone")

    def score(self, images, prompts) -> list[float]:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer == "pixels":
            return [float(image.max()) / 255 for image in images]
        return self.answer  # type: ignore[return-value]


class Dispatcher(Recorder):
    """Acknowledges, answers something else, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: Message | Exception | None = None

    async def on_message(self, message: Message) -> Message | None:
        self.inbox.append(message)
        if isinstance(self.answers, Exception):
            if isinstance(message, Scored):
                raise self.answers
            return None
        return self.answers


@pytest.fixture
async def dispatcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[tuple[Dispatcher, Scorer, BundleOffer]]:
    scorer = Scorer()
    monkeypatch.setattr("spotlight.actors.worker.reward_worker.build_scorer", lambda spec: scorer)
    store = BundleStore(tmp_path / "store", token="token")
    await store.start()
    images = torch.zeros(3, 4, 4, 3, dtype=torch.uint8)
    images[1], images[2] = 51, 255
    bundle = store.put("images", pack({"images": images}))
    async with Cluster() as cluster:
        system = await cluster.system("worker")
        dispatcher = Dispatcher()
        await system.spawn(lambda: dispatcher, "dispatcher")
        worker = await system.spawn(
            lambda: RewardWorker(WorkerContext("w", 7, system.address)), "reward-worker"
        )
        membership = Membership(*[dispatcher.ref] * 3, STORE)
        await system.ask(worker, PrepareJob("job", job(), membership), timeout_s=5.0)
        yield dispatcher, scorer, bundle
    await store.aclose()


async def score(dispatcher: Recorder, bundle: BundleOffer, rows: tuple[int, ...]) -> None:
    worker = dispatcher.system.well_known(dispatcher.ref.address, "reward-worker")
    grant = ScoreGrant(3, 15.0, bundle, rows, ("a",) * len(rows))
    dispatcher.tell(worker, grant)
    await asyncio.sleep(0.1)


async def test_rewards_are_in_the_order_of_the_rows(dispatcher) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = "pixels"
    await score(recorded, bundle, (2, 0, 1))
    scored = recorded.last(Scored)
    assert (scored.worker, scored.epoch, scored.lease) == ("w", 7, 3)
    assert scored.rewards == (1.0, 0.0, 0.2)
    assert scored.seconds > 0.0


@pytest.mark.parametrize(
    "answer", [ScoringError("gone"), AttributeError("bug"), [0.5], [0.5, 2.0], [0.5, float("nan")]]
)
async def test_a_failure_or_nonsense_is_never_a_reward(dispatcher, answer: object) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = answer
    await score(recorded, bundle, (0, 1))
    assert recorded.all(Scored) == []
    assert recorded.last(ScoreFailed).lease == 3


async def test_images_that_are_not_there_are_a_failure(dispatcher, tmp_path: Path) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = "pixels"
    await score(recorded, bundle, (0, 9))
    assert recorded.all(Scored) == []
    assert "IndexError" in recorded.last(ScoreFailed).error


async def test_a_grant_that_comes_twice_is_scored_once(dispatcher) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = "pixels"
    await score(recorded, bundle, (0,))
    await score(recorded, bundle, (0,))
    assert len(recorded.all(Scored)) == 1


async def test_pulls_come_regularly_and_renew_what_is_held(dispatcher) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = "pixels"
    await asyncio.sleep(9.0)
    assert len(recorded.all(PullScores)) == 3
    recorded.answers = Receipt(0, ask_again=True)  # so that the lease stays
    await score(recorded, bundle, (0,))
    await asyncio.sleep(5.0)
    assert recorded.last(PullScores).leases == (3,)
    recorded.answers = None
    await asyncio.sleep(2.0)
    assert recorded.last(PullScores).leases == ()


async def test_rewards_wait_for_the_coordinator_that_comes_back(dispatcher) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = "pixels"
    worker = recorded.system.well_known(recorded.ref.address, "reward-worker")
    recorded.answers = RuntimeError("not now")
    await score(recorded, bundle, (2,))
    successor = await recorder(recorded.system, "successor")
    again = PrepareJob("job", job(), Membership(*[successor.ref] * 3, STORE))
    await recorded.ask(worker, again, timeout_s=5.0)
    assert successor.last(PullScores).leases == (3,)
    await asyncio.sleep(5.0)
    (scored,) = successor.all(Scored)
    assert (scored.lease, scored.rewards) == (3, (1.0,))
    assert successor.last(PullScores).leases == ()


async def test_rewards_are_given_up_when_the_coordinator_stays_away(dispatcher) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = "pixels"
    recorded.answers = RuntimeError("not now")
    await score(recorded, bundle, (2,))
    await asyncio.sleep(AWAY_LIMIT_S + 10.0)
    assert recorded.last(PullScores).leases == ()


async def test_after_the_end_of_the_job_nothing_is_scored(dispatcher) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = "pixels"
    recorded.tell(recorded.system.well_known(recorded.ref.address, "reward-worker"), EndJob("job"))
    await score(recorded, bundle, (0,))
    assert recorded.all(Scored) == recorded.all(ScoreFailed) == []


async def test_a_scorer_that_cannot_be_built_fails_its_batches_and_not_the_worker(
    dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, _, bundle = dispatcher

    def build(spec: object) -> None:
        raise MissingDependency("rapidocr is not installed here")

    monkeypatch.setattr("spotlight.actors.worker.reward_worker.build_scorer", build)
    worker = recorded.system.well_known(recorded.ref.address, "reward-worker")
    other = job(reward={"attempts": 1})
    again = PrepareJob("another", other, Membership(*[recorded.ref] * 3, STORE))
    await recorded.ask(worker, again, timeout_s=5.0)
    await score(recorded, bundle, (0,))
    assert "rapidocr is not installed" in recorded.last(ScoreFailed).error


async def test_a_grant_of_a_stranger_is_not_scored(dispatcher) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = "pixels"
    stranger = await recorder(recorded.system, "stranger")
    worker = recorded.system.well_known(recorded.ref.address, "reward-worker")
    stranger.tell(worker, ScoreGrant(3, 15.0, bundle, (0,), ("a",)))
    await asyncio.sleep(0.1)
    assert recorded.all(Scored) == stranger.inbox == []
