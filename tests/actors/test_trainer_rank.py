"""A trainer rank: it trains once per iteration, and every error becomes a message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from job_kit import Recorder, job, recorder, settle
from runtime_kit import Cluster

from spotlight.actors import trainer_rank
from spotlight.actors.messages import (
    EndJob,
    StartTrainer,
    Train,
    Trained,
    TrainerFailed,
    TrainerReady,
    TrainingSample,
)
from spotlight.actors.runtime import ActorRef
from spotlight.actors.trainer_rank import TrainerRank
from spotlight.actors.worker_state import WorkerContext
from spotlight.errors import TrainingDiverged
from spotlight.transport.tensors import BundleOffer, BundleStore
from spotlight.transport.tensors.bundles import pack

pytestmark = pytest.mark.virtual_time


class FakeTrainer:
    """Notes its batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Any]] = []
        self.error: Exception | None = None

    def train(self, iteration: int, batch: Any) -> dict[str, float]:
        if self.error is not None:
            raise self.error
        self.batches.append((iteration, batch))
        return {"loss": 1.0 / (iteration + 1)}


class Gym:
    runner: Recorder
    rank: ActorRef
    trainer: FakeTrainer
    bundles: list[BundleOffer]

    async def tell(self, message: Any) -> None:
        self.runner.tell(self.rank, message)
        await settle()

    async def start(self) -> None:
        await self.tell(StartTrainer("job", job(), 0, 1, "", ""))

    def batch(self, iteration: int) -> Train:
        a, b = self.bundles
        rows = (("p", b, 1, 0.5), ("q", a, 0, -0.5), ("p", b, 0, 0.25))
        return Train(iteration, 0, tuple(TrainingSample(*row) for row in rows))


@pytest.fixture
async def gym(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Gym]:
    gym = Gym()
    gym.trainer = FakeTrainer()

    def build(message: StartTrainer, listener: object) -> Any:
        model: Any = None
        trainer: Any = gym.trainer
        return trainer_rank._Training(message.job_id, message.rank, model, trainer, None)

    monkeypatch.setattr(trainer_rank, "_build", build)
    store = BundleStore(tmp_path / "store", token="token")
    await store.start()
    gym.bundles = [
        store.put(f"samples/{n}", pack({"latents": torch.tensor([[n + 0.0], [n + 0.5]])}))
        for n in (1, 2)
    ]
    async with Cluster() as cluster:
        system = await cluster.system("worker")
        gym.runner = await recorder(system, "runner")
        context = WorkerContext("w", epoch=1)
        gym.rank = await system.spawn(lambda: TrainerRank(context, "127.0.0.1"), "trainer-rank")
        yield gym
    await store.aclose()


async def test_it_says_when_it_is_built(gym: Gym) -> None:
    await gym.start()
    assert gym.runner.inbox == [TrainerReady(0)]


async def test_it_trains_on_the_rows_in_the_order_of_the_message(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    ((iteration, batch),) = gym.trainer.batches
    assert iteration == 0
    assert batch.prompts == ["p", "q", "p"]
    assert batch.latents.flatten().tolist() == [2.5, 1.0, 2.0]
    assert batch.advantages.tolist() == [0.5, -0.5, 0.25]
    assert gym.runner.last(Trained).metrics == {"loss": 1.0}


async def test_a_repeated_train_is_answered_from_memory(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    await gym.tell(gym.batch(0))
    first, second = gym.runner.all(Trained)
    assert first == second
    assert len(gym.trainer.batches) == 1
    await gym.tell(gym.batch(1))
    assert len(gym.trainer.batches) == 2


async def test_an_error_of_the_trainer_becomes_a_message(gym: Gym) -> None:
    await gym.start()
    gym.trainer.error = TrainingDiverged("the loss is nan")
    await gym.tell(gym.batch(0))
    assert gym.runner.last(TrainerFailed) == TrainerFailed(0, "TrainingDiverged: the loss is nan")
    assert gym.runner.all(Trained) == []


async def test_work_for_a_job_that_has_ended_is_ignored(gym: Gym) -> None:
    await gym.start()
    await gym.tell(EndJob("job"))
    await gym.tell(gym.batch(0))
    assert gym.trainer.batches == []
    await gym.start()
    assert len(gym.runner.all(TrainerReady)) == 2
