"""A trainer rank: it trains once per iteration, and every error becomes a message."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from job_kit import Recorder, job, recorder
from msgspec import structs
from runtime_kit import Cluster

from spotlight.actors.protocol import (
    CheckpointSaved,
    DropTrainer,
    EndJob,
    GetTrainer,
    Membership,
    PrepareJob,
    Publish,
    Published,
    SaveCheckpoint,
    StartTrainer,
    Train,
    Trained,
    TrainerAt,
    TrainerFailed,
    TrainerListens,
    TrainerReady,
    TrainingSample,
)
from spotlight.actors.runtime import ActorRef, ActorSystem
from spotlight.actors.worker import trainer_rank
from spotlight.actors.worker.trainer_rank import TrainerRank
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.diffusion.samplers import Progress
from spotlight.errors import TrainingDiverged, TransferFailed, TransportError
from spotlight.transport.tensors import BundleStore
from spotlight.transport.tensors.bundles import pack
from spotlight.types import BundleOffer, StoreEndpoint

pytestmark = pytest.mark.virtual_time


async def settle() -> None:
    """Let messages to other processes, and their answers, arrive."""
    await asyncio.sleep(0.01)


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

    def evaluation_state(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.tensor([len(self.batches) / 2])}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.rollout_state()


class Gym:
    runner: Recorder
    rank: ActorRef
    trainer: FakeTrainer
    built: int
    rendezvous: str
    bundles: list[BundleOffer]
    system: ActorSystem
    store: BundleStore
    context: WorkerContext
    run_folder: Path
    elsewhere: Callable[[str], Awaitable[ActorSystem]]
    """Another process."""

    async def tell(self, message: Any) -> None:
        self.runner.tell(self.rank, message)
        await settle()

    async def prepare(self, runner: Recorder) -> None:
        """The node says whose orders count."""
        membership = Membership(*[runner.ref] * 2, self.store.writable_by("node"))
        self.system.tell(self.rank, PrepareJob("job", job(), membership))
        await settle()

    async def end(self, job_id: str, term: int = 0) -> None:
        """The node says that a job has ended."""
        self.system.tell(self.rank, EndJob(job_id, term))
        await settle()

    async def start(self, completed: int = 0, term: int = 1) -> None:
        folder = str(self.run_folder)
        await self.tell(StartTrainer("job", job(), 0, 1, "", folder, completed, term))

    async def completed(self, job_id: str = "job") -> int:
        answer = await self.runner.ask(self.rank, GetTrainer(job_id), timeout_s=1.0)
        assert isinstance(answer, TrainerAt)
        return answer.completed

    def sample(self, *, noisy: int = 0) -> None:
        """Two bundles of two samples each, denoised with so many noisy steps."""
        for n in (1.0, 2.0):
            latents = torch.tensor([[n], [n + 0.5]])
            states = latents.unsqueeze(1).repeat(1, noisy + 1 if noisy else 0, 1)
            progress = Progress(5, latents, states, latents.repeat(1, noisy))
            self.bundles.append(self.store.put(f"samples/{n}", pack(progress.tensors())))

    def batch(self, iteration: int) -> Train:
        a, b = self.bundles[-2:]
        rows = (("p", b, 1, 0.5), ("q", a, 0, -0.5), ("p", b, 0, 0.25))
        return Train(iteration, 0, tuple(TrainingSample(*row) for row in rows))


@pytest.fixture
async def gym(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Gym]:
    gym = Gym()
    gym.trainer = FakeTrainer()
    gym.built = 0
    gym.run_folder = tmp_path / "run"

    def build(
        message: StartTrainer,
        rendezvous: str,
        listener: socket.socket | None,
        collective_limit_s: float,
    ) -> Any:
        gym.built += 1
        gym.rendezvous = rendezvous
        if listener is not None:
            listener.close()
        model: Any = None
        trainer: Any = gym.trainer
        return trainer_rank._Training(
            message.job_id, message.rank, model, trainer, None, gym.run_folder, message.completed
        )

    monkeypatch.setattr(trainer_rank, "_build", build)
    store = BundleStore(tmp_path / "store", token="token")
    await store.start()

    async def upload(endpoint: StoreEndpoint, key: str, data: bytes) -> BundleOffer:
        return store.put(key, data)

    monkeypatch.setattr(trainer_rank, "upload", upload)
    gym.store, gym.bundles = store, []
    gym.sample()
    async with Cluster() as cluster:
        system = await cluster.system("worker")
        elsewhere = await cluster.system("coordinator")
        gym.runner = await recorder(elsewhere, "runner")
        gym.elsewhere = cluster.system
        gym.system = system
        gym.context = WorkerContext("w", 1, gym.system.address)
        gym.rank = await system.spawn(lambda: TrainerRank(gym.context, "127.0.0.1"), "trainer-rank")
        await gym.prepare(gym.runner)
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
    await gym.end("another")
    assert await gym.completed() == 0


async def test_the_end_of_an_earlier_term_does_not_end_a_resumed_job(gym: Gym) -> None:
    await gym.start(term=2)
    await gym.end("job", term=1)
    assert await gym.completed() == 0
    await gym.end("job", term=2)
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


async def test_samples_of_steps_without_noise_have_no_states_to_train_on(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    ((_, batch),) = gym.trainer.batches
    assert batch.window_states is batch.log_probs is None


async def test_the_states_of_noisy_steps_are_trained_on_in_the_order_of_the_message(
    gym: Gym,
) -> None:
    gym.sample(noisy=2)
    await gym.start()
    await gym.tell(gym.batch(0))
    ((_, batch),) = gym.trainer.batches
    assert batch.window_states.squeeze(2).tolist() == [[2.5] * 3, [1.0] * 3, [2.0] * 3]
    assert batch.log_probs.tolist() == [[2.5] * 2, [1.0] * 2, [2.0] * 2]


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
        await gym.prepare(successor)
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
        await gym.prepare(successor)
        successor.tell(gym.rank, gym.batch(0))
        await settle()
    await settle()
    assert len(successor.all(TrainerFailed)) == 1
    gym.trainer.error = None
    successor.tell(gym.rank, gym.batch(0))
    await settle()
    assert successor.last(Trained).iteration == 0


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
    await gym.tell(publish)
    await gym.prepare(successor)
    for order in (publish, gym.batch(1), publish):  # the last is a reminder that was on its way
        successor.tell(gym.rank, order)
        await settle()
    assert len(gym.runner.all(Published)) == len(successor.all(Published)) == 2
    assert len({*gym.runner.all(Published), *successor.all(Published)}) == 1
    assert successor.all(TrainerFailed) == []


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
    gym: Gym,
) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    await gym.tell(SaveCheckpoint(1, export=False))
    await gym.tell(SaveCheckpoint(1, export=False))
    assert gym.runner.all(CheckpointSaved) == [CheckpointSaved(1)] * 2
    (saved,) = (gym.run_folder / "checkpoints").iterdir()
    assert saved.name == "iteration-000001.safetensors"
    await gym.tell(SaveCheckpoint(2, export=False))
    assert "1 are trained" in gym.runner.last(TrainerFailed).error


async def test_the_weights_that_are_exported_are_those_that_were_validated(
    gym: Gym, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[tuple[dict[str, torch.Tensor], Path]] = []

    def export(model: Any, weights: dict[str, torch.Tensor], folder: Path) -> None:
        exported.append((weights, folder))

    monkeypatch.setattr(trainer_rank, "export_transformer", export)
    await gym.start()
    await gym.tell(gym.batch(0))
    await gym.tell(SaveCheckpoint(1, export=True))
    assert exported == [(gym.trainer.evaluation_state(), gym.run_folder / "export")]
    assert gym.runner.last(CheckpointSaved).iteration == 1


async def test_an_error_of_the_trainer_becomes_a_message(gym: Gym) -> None:
    await gym.start()
    gym.trainer.error = TrainingDiverged("the loss is nan")
    await gym.tell(gym.batch(0))
    assert gym.runner.last(TrainerFailed) == TrainerFailed(0, "TrainingDiverged: the loss is nan")
    assert gym.runner.all(Trained) == []


async def test_work_for_a_job_that_has_ended_is_ignored(gym: Gym) -> None:
    await gym.start()
    await gym.end("job")
    await gym.tell(gym.batch(0))
    assert gym.trainer.batches == []
    await gym.start(term=2)
    assert len(gym.runner.all(TrainerReady)) == 2


async def test_an_order_of_nobody_ends_no_trainer(gym: Gym) -> None:
    """Whoever can reach the port may leave out who it is."""
    elsewhere = await gym.elsewhere("stranger")
    elsewhere.tell(gym.rank, StartTrainer("job", job(), 0, 1, "", str(gym.run_folder), 0, 99))
    await settle()
    await gym.start()
    assert (gym.built, await gym.completed()) == (1, 0)
    assert gym.system.dead_letters.counts["not_allowed"] == 1


async def test_a_strangers_orders_are_refused(gym: Gym) -> None:
    """Whoever can reach the port: nothing is trained, written or deleted for them."""
    await gym.start()
    stranger = await recorder(gym.system, "stranger")
    orders = [
        gym.batch(0),
        Publish(0, False, gym.store.writable_by("node")),
        SaveCheckpoint(0, export=True),
        DropTrainer("job", 99),
        StartTrainer("job", job(), 0, 1, "", str(gym.run_folder / "elsewhere"), 0, 99),
    ]
    for order in orders:
        stranger.tell(gym.rank, order)
    await settle()
    assert stranger.inbox == []
    assert gym.trainer.batches == []
    assert not gym.run_folder.exists()
    assert (gym.built, await gym.completed()) == (1, 0)
    assert gym.system.dead_letters.counts["not_allowed"] == len(orders) - 1


async def test_only_the_node_says_whose_orders_count(gym: Gym) -> None:
    stranger = await recorder(await gym.elsewhere("stranger"), "stranger")
    membership = Membership(*[stranger.ref] * 2, gym.store.writable_by("node"))
    stranger.tell(gym.rank, PrepareJob("job", job(), membership))
    stranger.tell(gym.rank, StartTrainer("job", job(), 0, 1, "", str(gym.run_folder), 0, 9))
    await settle()
    assert gym.built == 0


async def test_an_order_that_comes_before_its_runner_is_named_waits_for_that(gym: Gym) -> None:
    successor = await recorder(await gym.elsewhere("another"), "runner")
    successor.tell(gym.rank, StartTrainer("job", job(), 0, 1, "", str(gym.run_folder), 0, 2))
    await settle()
    assert gym.built == 0
    await gym.prepare(successor)
    assert gym.built == 1
    assert successor.inbox == [TrainerReady(0)]


async def test_rank_0_of_several_says_where_it_listens_as_often_as_it_is_told(gym: Gym) -> None:
    order = StartTrainer("job", job(), 0, 2, "", str(gym.run_folder), 0, 1)
    async with gym.context.accelerator_turn():
        await gym.tell(order)
        await gym.tell(order)
        first, second = gym.runner.all(TrainerListens)
        assert first == second
        host, _, port = first.rendezvous.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5.0):
            pass
    await settle()
    assert gym.rendezvous == first.rendezvous, "it meets the others where it says"


async def test_the_ranks_behind_the_first_meet_it_where_they_are_told(gym: Gym) -> None:
    await gym.tell(StartTrainer("job", job(), 1, 2, "somewhere:1", str(gym.run_folder), 0, 1))
    await settle()
    assert gym.rendezvous == "somewhere:1"


async def test_a_rank_that_others_have_replaced_frees_its_trainer(gym: Gym) -> None:
    await gym.start(term=2)
    await gym.tell(DropTrainer("job", 2))
    assert await gym.completed() == 0, "it is of that term itself"
    await gym.tell(DropTrainer("job", 3))
    assert await gym.completed() == -1


async def test_weights_are_published_when_the_nodes_store_is_back(
    gym: Gym, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node stood still for a while."""
    plain, tries = trainer_rank.upload, 0

    async def upload(endpoint: StoreEndpoint, key: str, data: bytes) -> BundleOffer:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise TransferFailed("the store is away")
        return await plain(endpoint, key, data)

    monkeypatch.setattr(trainer_rank, "upload", upload)
    await gym.start()
    await gym.tell(Publish(0, False, gym.store.writable_by("node")))
    await asyncio.sleep(10.0)
    assert [each.version for each in gym.runner.all(Published)] == [0]
    assert gym.runner.all(TrainerFailed) == []


async def test_ranks_that_lost_each_other_say_so(gym: Gym) -> None:
    await gym.start()
    gym.trainer.error = TransportError("all-reduce: rank 0 of 2 lost its peers")
    await gym.tell(gym.batch(0))
    assert gym.runner.last(TrainerFailed).lost_others
