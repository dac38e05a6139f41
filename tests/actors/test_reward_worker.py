"""The reward worker: a failure is reported as a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from job_kit import STORE, Recorder, job, recorder
from runtime_kit import Cluster

from spotlight.actors.messages import (
    EndJob,
    Membership,
    PrepareJob,
    PullScores,
    Scored,
    ScoreFailed,
    ScoreGrant,
)
from spotlight.actors.reward_worker import RewardWorker
from spotlight.actors.worker_state import WorkerContext
from spotlight.errors import ScoringError
from spotlight.transport.tensors import BundleOffer, BundleStore
from spotlight.transport.tensors.bundles import pack

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


@pytest.fixture
async def dispatcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[tuple[Recorder, Scorer, BundleOffer]]:
    scorer = Scorer()
    monkeypatch.setattr("spotlight.actors.reward_worker.build_scorer", lambda spec: scorer)
    store = BundleStore(tmp_path / "store", token="token")
    await store.start()
    images = torch.zeros(3, 4, 4, 3, dtype=torch.uint8)
    images[1], images[2] = 51, 255
    bundle = store.put("images", pack({"images": images}))
    async with Cluster() as cluster:
        system = await cluster.system("worker")
        dispatcher = await recorder(system, "dispatcher")
        worker = await system.spawn(
            lambda: RewardWorker(WorkerContext("w", epoch=7)), "reward-worker"
        )
        membership = Membership(dispatcher.ref, dispatcher.ref, STORE)
        await system.ask(worker, PrepareJob("job", job(), membership), timeout_s=5.0)
        yield dispatcher, scorer, bundle
    await store.aclose()


async def score(dispatcher: Recorder, bundle: BundleOffer, rows: tuple[int, ...]) -> None:
    worker = dispatcher.last(PullScores).reward_worker
    grant = ScoreGrant(3, 15.0, bundle, rows, ("a",) * len(rows))
    dispatcher.tell(worker, grant)
    await asyncio.sleep(0.1)


async def test_rewards_are_in_the_order_of_the_rows(dispatcher) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = "pixels"
    await score(recorded, bundle, (2, 0, 1))
    assert recorded.last(Scored) == Scored("w", 7, 3, (1.0, 0.0, 0.2))


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


async def test_after_the_end_of_the_job_nothing_is_scored(dispatcher) -> None:
    recorded, scorer, bundle = dispatcher
    scorer.answer = "pixels"
    recorded.tell(recorded.last(PullScores).reward_worker, EndJob("job"))
    await score(recorded, bundle, (0,))
    assert recorded.all(Scored) == recorded.all(ScoreFailed) == []
