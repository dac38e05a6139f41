"""A trainer rank: it trains once per iteration, and every error becomes a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from job_kit import Recorder, job, recorder, settle
from msgspec import structs
from runtime_kit import Cluster

from spotlight.actors import trainer_rank
from spotlight.actors.messages import (
    CheckpointSaved,
    EndJob,
    GetTrainer,
    Publish,
    Published,
    SaveCheckpoint,
    StartTrainer,
    Train,
    Trained,
    TrainerAt,
    TrainerFailed,
    TrainerReady,
    TrainingSample,
)
from spotlight.actors.runtime import ActorRef, ActorSystem
from spotlight.actors.trainer_rank import TrainerRank
from spotlight.actors.worker_state import WorkerContext
from spotlight.errors import TrainingDiverged, TransferFailed
from spotlight.transport.tensors import BundleOffer, BundleStore, StoreEndpoint
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

    def rollout_state(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.tensor([float(len(self.batches))])}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.rollout_state()


class Gym:
    runner: Recorder
    rank: ActorRef
    trainer: FakeTrainer
    built: int
    bundles: list[BundleOffer]
    system: ActorSystem
    store: BundleStore
    context: WorkerContext

    async def tell(self, message: Any) -> None:
        self.runner.tell(self.rank, message)
        await settle()

    async def start(self, completed: int = 0, term: int = 1) -> None:
        await self.tell(StartTrainer("job", job(), 0, 1, "", "", completed, term))

    async def completed(self, job_id: str = "job") -> int:
        answer = await self.runner.ask(self.rank, GetTrainer(job_id), timeout_s=1.0)
        assert isinstance(answer, TrainerAt)
        return answer.completed

    def batch(self, iteration: int) -> Train:
        a, b = self.bundles
        rows = (("p", b, 1, 0.5), ("q", a, 0, -0.5), ("p", b, 0, 0.25))
        return Train(iteration, 0, tuple(TrainingSample(*row) for row in rows))


@pytest.fixture
async def gym(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Gym]:
    gym = Gym()
    gym.trainer = FakeTrainer()
    gym.built = 0

    def build(message: StartTrainer, listener: object) -> Any:
        gym.built += 1
        model: Any = None
        trainer: Any = gym.trainer
        return trainer_rank._Training(
            message.job_id, message.rank, model, trainer, None, message.completed
        )

    monkeypatch.setattr(trainer_rank, "_build", build)
    store = BundleStore(tmp_path / "store", token="token")
    await store.start()

    async def upload(endpoint: StoreEndpoint, key: str, data: bytes) -> BundleOffer:
        return store.put(key, data)

    monkeypatch.setattr(trainer_rank, "upload", upload)
    gym.bundles = [
        store.put(f"samples/{n}", pack({"latents": torch.tensor([[n + 0.0], [n + 0.5]])}))
        for n in (1, 2)
    ]
    async with Cluster() as cluster:
        system = await cluster.system("worker")
        gym.runner = await recorder(system, "runner")
        gym.system = system
        gym.store = store
        gym.context = WorkerContext("w", epoch=1)
        gym.rank = await system.spawn(lambda: TrainerRank(gym.context, "127.0.0.1"), "trainer-rank")
        yield gym
    await store.aclose()


async def test_it_says_when_it_is_built(gym: Gym) -> None:
    await gym.start()
    assert gym.runner.inbox == [TrainerReady(0)]


async def test_the_same_term_builds_once_and_another_one_again(gym: Gym) -> None:
    async with gym.context.accelerator_turn():
        await gym.start()
        await gym.start()
    await settle()
    await gym.tell(gym.batch(0))
    await gym.start()
    assert gym.runner.all(TrainerReady) == [TrainerReady(0)] * 2
    assert (gym.built, await gym.completed()) == (1, 1)
    await gym.start(term=2)
    assert (gym.built, await gym.completed()) == (2, 0)


async def test_what_runs_for_ranks_that_were_given_up_is_never_answered(gym: Gym) -> None:
    await gym.start()
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        await gym.start(term=2)
    await settle()
    assert gym.runner.all(Trained) == []
    assert await gym.completed() == 0


async def test_the_end_of_another_job_changes_nothing(gym: Gym) -> None:
    await gym.start()
    await gym.tell(EndJob("another"))
    assert await gym.completed() == 0


async def test_the_end_of_an_earlier_term_does_not_end_a_resumed_job(gym: Gym) -> None:
    await gym.start(term=2)
    await gym.tell(EndJob("job", term=1))
    assert await gym.completed() == 0
    await gym.tell(EndJob("job", term=2))
    assert await gym.completed() == -1


async def test_samples_are_fetched_from_where_the_coordinator_that_came_back_has_them(
    gym: Gym, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trainer_rank.fetch

    async def fetch(offer: BundleOffer) -> bytes:
        if offer.store.token == "gone":
            raise TransferFailed("the store is away")
        return await plain(offer)

    monkeypatch.setattr(trainer_rank, "fetch", fetch)
    order = gym.batch(0)
    away = [
        structs.replace(
            sample,
            bundle=structs.replace(
                sample.bundle, store=structs.replace(sample.bundle.store, token="gone")
            ),
        )
        for sample in order.samples
    ]
    await gym.start()
    await gym.tell(structs.replace(order, samples=tuple(away)))
    assert await gym.completed() == 0
    await gym.tell(order)
    await asyncio.sleep(2.0)
    assert await gym.completed() == 1
    assert len(gym.runner.all(Trained)) == 1


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


async def test_a_train_that_is_repeated_while_it_runs_is_answered_once_to_the_latest_asker(
    gym: Gym,
) -> None:
    await gym.start()
    successor = await recorder(gym.system, "successor")
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        successor.tell(gym.rank, gym.batch(0))
        await settle()
        assert await gym.completed() == 0
    await settle()
    assert len(gym.trainer.batches) == 1
    assert successor.all(Trained) == [Trained(0, 0, {"loss": 1.0}, successor.inbox[0].seconds)]
    assert gym.runner.all(Trained) == []


async def test_an_error_goes_to_the_latest_asker_too_and_the_iteration_may_be_tried_again(
    gym: Gym,
) -> None:
    await gym.start()
    successor = await recorder(gym.system, "successor")
    gym.trainer.error = TrainingDiverged("the loss is nan")
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        successor.tell(gym.rank, gym.batch(0))
        await settle()
    await settle()
    assert len(successor.all(TrainerFailed)) == 1
    gym.trainer.error = None
    await gym.tell(gym.batch(0))
    assert gym.runner.last(Trained).iteration == 0


async def test_it_says_how_many_iterations_are_trained(gym: Gym) -> None:
    assert await gym.completed() == -1
    await gym.start(completed=3)
    assert await gym.completed() == 3
    await gym.tell(gym.batch(3))
    await gym.tell(gym.batch(3))
    assert await gym.completed() == 4
    assert await gym.completed("another") == -1


@pytest.mark.parametrize("iteration", [2, 4])
async def test_an_iteration_out_of_turn_is_refused(gym: Gym, iteration: int) -> None:
    await gym.start(completed=3)
    await gym.tell(gym.batch(iteration))
    assert gym.trainer.batches == []
    assert "3 are trained" in gym.runner.last(TrainerFailed).error
    assert await gym.completed() == 3


async def test_weights_are_published_to_whoever_asks_as_often_as_they_ask(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    successor = await recorder(gym.system, "successor")
    publish = Publish(1, False, gym.store.writable_by("node"))
    await gym.tell(publish)
    successor.tell(gym.rank, publish)
    await settle()
    await gym.tell(publish)
    await gym.tell(gym.batch(1))
    await gym.tell(publish)  # a reminder that was on its way
    assert successor.all(Published) == [gym.runner.all(Published)[0]]
    assert len(set(gym.runner.all(Published))) == 1
    assert gym.runner.all(TrainerFailed) == []


async def test_weights_of_another_version_than_asked_for_are_never_published(gym: Gym) -> None:
    await gym.start()
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        await gym.tell(
            Publish(0, False, gym.store.writable_by("node"))
        )  # queued behind the training
    await settle()
    assert gym.runner.all(Published) == []
    assert "asked to publish iteration 0, but 1 are trained" in gym.runner.last(TrainerFailed).error


async def test_a_checkpoint_is_saved_as_often_as_asked_for_but_only_of_what_is_trained(
    gym: Gym, tmp_path: Path
) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    path = str(tmp_path / "checkpoint.safetensors")
    await gym.tell(SaveCheckpoint(1, path, ""))
    await gym.tell(SaveCheckpoint(1, path, ""))
    assert gym.runner.all(CheckpointSaved) == [CheckpointSaved(1, path)] * 2
    await gym.tell(SaveCheckpoint(2, path, ""))
    assert "1 are trained" in gym.runner.last(TrainerFailed).error


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
    await gym.start(term=2)
    assert len(gym.runner.all(TrainerReady)) == 2
