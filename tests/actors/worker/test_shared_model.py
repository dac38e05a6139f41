"""A member and a trainer rank share the model of their process, and neither notices the other."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from job_kit import STORE, job, request
from member_kit import NOISY, PERSISTENT, Worker, assert_same_bits, one_thread, until
from msgspec import structs
from rank_kit import take_all
from runtime_kit import Cluster

from spotlight.actors.protocol.trainer import Publish, StartTrainer, Train, TrainerReport
from spotlight.actors.protocol.up import Completed
from spotlight.actors.runtime import ActorRef
from spotlight.actors.worker import torch_engine
from spotlight.actors.worker.commit_bundles import pack_commit
from spotlight.actors.worker.engine import Origin
from spotlight.actors.worker.shared_model import HeldVersion, SharedModel
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.torch_model import TorchModel
from spotlight.actors.worker.torch_trainer import TorchTrainer
from spotlight.actors.worker.trainer_rank import TrainerRank
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.progress import Progress
from spotlight.diffusion.sequence_parallel import SequenceParallel
from spotlight.errors import TrainingDiverged, TransportError
from spotlight.jobs import JobSpec
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.state_files import StateFile
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors.bundles import unpack
from spotlight.types import BundleOffer, TrainingSample

Tensors = dict[str, torch.Tensor]

FULL = job()
GRPO = {"loss": "flow_grpo", "kl": 0.1, "learning_rate": 0.01, "updates_per_iteration": 1}
LORA = job(
    model={"tuning": "lora", "lora": {"rank": 2}},
    sampler={"kind": "flow_sde", "steps": 5, "window": {"length": 2, "latest": 4}},
    training=GRPO | {"rollout_decay": 0.0},
)
REQUESTS = tuple(structs.replace(request(n, group=n), settings=NOISY) for n in range(4))


@pytest.fixture(autouse=True)
def equal_bits() -> Iterator[None]:
    with one_thread():
        yield


def order(job: JobSpec) -> StartTrainer:
    return StartTrainer("job", job, 0, 1, "", 0, (), 1)


def files(state: Mapping[str, torch.Tensor] | None) -> list[StateFile]:
    """A state as it comes from a store."""
    if state is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder) / "state", state, {})
        return [StateFile(Path(folder) / "state")]


def alone(job: JobSpec, state: Mapping[str, torch.Tensor] | None = None) -> TorchTrainer:
    """A trainer with a model of its own."""
    return TorchTrainer(order(job), load_model(job.model), files(state), "", None, lambda: None)


def denoised(model: TorchModel) -> Progress:
    denoising = model.begin(REQUESTS, None)
    while not denoising.done:
        denoising.step()
    return denoising.progress()


def train(trainer: TorchTrainer, iteration: int, samples: Progress) -> Mapping[str, float]:
    bundle = pack_commit(Origin("job", 0), REQUESTS, samples)
    offer = BundleOffer("samples", len(bundle), 0, STORE)
    rows = enumerate((0.5, -0.5, 1.0, -1.0))
    picked = (
        TrainingSample(REQUESTS[row].prompt, offer, row, good, REQUESTS[row].seed)
        for row, good in rows
    )
    message = Train(iteration, NOISY.window[0] if NOISY.window else 0, tuple(picked))
    return take_all(trainer, message, {"samples": bundle})


class Shared:
    """The model of a process with a rank on it, both worked on in the accelerator's thread."""

    def __init__(self, job: JobSpec) -> None:
        self.context, self.engine = WorkerContext("w", 1, ""), TorchEngine()
        self.shared = SharedModel(self.context, self.engine)
        self.job = job
        self.model = cast(TorchModel, self.shared.load(job.model))
        SequenceParallel(self.model.model.transformer)  # as in a worker that was in a group

    def rank(self, state: Mapping[str, torch.Tensor] | None = None) -> TorchTrainer:
        spec = self.job.model
        model = self.shared.load(spec) if state else self.shared.load_untrained(spec)
        with self.shared.training(model):
            return self.engine.build_trainer(
                order(self.job), model, files(state), "", None, lambda: None
            )

    async def denoise(self, version: HeldVersion) -> Progress:
        def work() -> Progress:
            self.shared.install(self.model, version)
            return denoised(self.model)

        return await self.context.on_accelerator(work)

    async def train(self, rank: TorchTrainer, iteration: int, samples: Progress) -> None:
        def work() -> None:
            with self.shared.training(self.model):
                train(rank, iteration, samples)

        await self.context.on_accelerator(work)


@pytest.fixture
def tuned() -> JobSpec:
    """What is trained; tests that need adapters say so."""
    return FULL


both_ways = pytest.mark.parametrize("tuned", [FULL, LORA], ids=["full", "lora"])


@pytest.fixture
def process(tuned: JobSpec) -> Iterator[Shared]:
    process = Shared(tuned)
    yield process
    process.context.close()


def other_weights(job: JobSpec, shift: float) -> HeldVersion:
    own = load_model(job.model).trainable_state()
    return HeldVersion(1, {name: tensor + shift for name, tensor in own.items()})


def with_own_model(job: JobSpec, version: HeldVersion) -> Progress:
    model = TorchModel(load_model(job.model))
    model.use(version.weights)
    return denoised(model)


@both_ways
async def test_a_rank_trains_as_if_nobody_denoised_in_between(process: Shared) -> None:
    far = other_weights(process.job, 0.02)
    first = alone(process.job)
    samples = with_own_model(process.job, HeldVersion(0, first.weights("rollout")))
    for iteration in range(2):
        train(first, iteration, samples)
    rank = process.rank()
    for iteration in range(2):
        await process.denoise(far)
        await process.train(rank, iteration, samples)
    assert_same_bits(rank.state().tensors, first.state().tensors)


async def test_a_member_denoises_as_if_nobody_trained_in_between(process: Shared) -> None:
    version = other_weights(process.job, 0.01)
    expected = with_own_model(process.job, version)
    rank = process.rank()
    for iteration in range(2):
        found = await process.denoise(version)
        assert_same_bits(found.tensors(), expected.tensors())
        await process.train(rank, iteration, found)
    assert_same_bits((await process.denoise(version)).tensors(), expected.tensors())


async def test_a_rank_without_a_state_begins_with_the_checkpoint_whatever_is_in_the_model(
    process: Shared,
) -> None:
    await process.denoise(other_weights(process.job, 0.5))
    rank = process.rank()
    assert_same_bits(rank.state().tensors, alone(process.job).state().tensors)
    await process.train(rank, 0, await process.denoise(other_weights(process.job, 0.01)))
    assert_same_bits(process.rank().state().tensors, alone(process.job).state().tensors)


@both_ways
async def test_a_rank_that_goes_on_from_a_state_has_nothing_of_what_is_in_the_model(
    process: Shared,
) -> None:
    rank = process.rank()
    samples = await process.denoise(other_weights(process.job, 0.01))
    await process.train(rank, 0, samples)
    state = rank.state().tensors
    await process.denoise(other_weights(process.job, 0.5))
    again = process.rank(state)
    assert_same_bits(again.state().tensors, state)
    await process.train(again, 1, samples)
    separate = alone(process.job, state)
    train(separate, 1, samples)
    assert_same_bits(again.state().tensors, separate.state().tensors)


async def test_training_that_fails_half_way_leaves_nothing_behind(
    process: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = other_weights(process.job, 0.01)
    before, rank = await process.denoise(version), process.rank()

    def diverge(*arguments: Any) -> Any:
        raise TrainingDiverged("as tests have it")

    monkeypatch.setattr(rank._trainer, "_step", diverge)
    with pytest.raises(TrainingDiverged):
        await process.train(rank, 0, before)
    parameters = process.model.model.transformer.parameters()
    assert all(parameter.grad is None for parameter in parameters)
    assert_same_bits((await process.denoise(version)).tensors(), before.tensors())


@both_ways
async def test_the_model_is_left_as_it_was_loaded_but_for_its_weights(process: Shared) -> None:
    def modes() -> list[Any]:
        transformer = process.model.model.transformer
        return [
            [module.training for module in transformer.modules()],
            [parameter.requires_grad for parameter in transformer.parameters()],
            [parameter.grad for parameter in transformer.parameters()],
        ]

    before, rank = modes(), process.rank()
    await process.train(rank, 0, await process.denoise(other_weights(process.job, 0.01)))
    assert modes() == before


async def test_a_thread_that_was_left_behind_installs_nothing_over_what_is_trained() -> None:
    process = Shared(FULL)
    stuck, go_on = threading.Event(), threading.Event()
    version = other_weights(FULL, 0.5)

    def left_behind() -> None:
        stuck.set()
        go_on.wait(60.0)
        process.shared.install(process.model, version)

    late = process.context.in_turn(left_behind)
    await until(stuck.is_set)
    process.context.abandon_accelerator()
    rank = process.rank()
    samples = await process.denoise(other_weights(FULL, 0.01))
    await process.train(rank, 0, samples)
    go_on.set()
    with pytest.raises(TransportError, match="left behind"):
        await late
    separate = alone(FULL)
    train(separate, 0, samples)
    installed = process.model.model.trainable_state()
    newest = {name: separate.state().tensors[f"weights/{name}"] for name in installed}
    assert_same_bits(installed, newest)
    process.context.close()


class Both(Worker):
    """A worker with a member and a trainer rank, as a worker's process has them."""

    rank: ActorRef
    loads = 0

    async def open_both(self, cluster: Cluster) -> None:
        weights = load_model(FULL.model).trainable_state()
        await self.open(cluster, "w", weights, PERSISTENT)
        engine = self.engine
        self.rank = await self.system.spawn(
            lambda: TrainerRank(self.context, engine, self.shared), "trainer-rank"
        )
        self.leader.tell(self.rank, self.planner.plan)

    async def report(self, count: int) -> TrainerReport:
        await until(lambda: len(self.leader.all(TrainerReport)) >= count)
        return self.leader.all(TrainerReport)[-1]


@pytest.fixture
async def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Both]:
    async with Cluster() as cluster:
        store = BundleStore(tmp_path / "store", token="token")
        await store.start()
        worker = Both(store, TorchEngine())

        def counted(spec: Any, **_: Any) -> Any:
            worker.loads += 1
            return load_model(spec)

        monkeypatch.setattr(torch_engine, "load_model", counted)
        await worker.open_both(cluster)
        yield worker
        await store.aclose()
        worker.context.close()


async def test_a_process_loads_one_model_and_what_its_member_denoises_does_not_change(
    both: Both,
) -> None:
    both.leader.tell(both.rank, order(FULL))
    assert (await both.report(1)).completed == 0
    both.leader.tell(both.rank, Publish(0, False, both.store.writable_by("w")))
    published = (await both.report(2)).published
    assert published is not None
    (offer,) = published.rollout
    assert_same_bits(unpack(await fetch(offer)), dict(load_model(FULL.model).trainable_state()))
    both.denoise(REQUESTS)
    before = await both.done()
    rows = enumerate((0.5, -0.5, 1.0, -1.0))
    bundle = both.leader.last(Completed).bundle
    samples = tuple(
        TrainingSample(REQUESTS[row].prompt, bundle, row, it, REQUESTS[row].seed)
        for row, it in rows
    )
    both.leader.tell(both.rank, Train(0, 0, samples))
    assert (await both.report(3)).trained is not None
    both.denoise(REQUESTS)
    assert_same_bits(await both.done(), before)
    assert both.loads == 1
