"""A trainer rank of a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from spotlight.actors.protocol import (
    CheckpointSaved,
    DropTrainer,
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
    TrainerListens,
    TrainerReady,
)
from spotlight.actors.protocol.delivery import try_tell, until_transferred
from spotlight.actors.runtime import ActorRef, handles
from spotlight.actors.worker.trainer_orders import ObedientTrainer, from_node, from_runner
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import SpotlightError, TransportError
from spotlight.store.run_folder import checkpoint_path
from spotlight.testing import fingerprints
from spotlight.testing.fake_hardware import FakeHardware, fetch_bundle
from spotlight.testing.numerics import Update
from spotlight.types import BundleOffer


@dataclass
class _Training:
    job_id: str
    rank: int
    term: int
    run_folder: Path
    completed: int
    weights: str
    done: Trained | None = None
    running: int | None = None
    saved: SaveCheckpoint | None = None
    """The latest order to save that was carried out."""
    asker: ActorRef | None = None


class SimulatedTrainerRank(ObedientTrainer):
    """Stands where a `TrainerRank` does. Ranks need not meet: each comes to the same weights."""

    def __init__(self, context: WorkerContext, plant: FakeHardware) -> None:
        super().__init__(context)
        self._plant = plant
        self._training: _Training | None = None
        self._building: tuple[str, int] | None = None
        """The job and the term of the order that built the trainer, or builds it now."""

    def begin(self, message: StartTrainer, asker: ActorRef) -> None:
        building = (message.job_id, message.term)
        if message.world > 1 and message.rank == 0:
            try_tell(self, asker, TrainerListens("simulated:1", message.term))
        if building == self._building:
            if self._training is not None:
                try_tell(self, asker, TrainerReady(message.rank))
            return
        self._building, self._training = building, None
        self._run(message.rank, self._start(message, asker), lambda: asker)

    @handles(DropTrainer, only=from_runner)
    async def on_drop(self, message: DropTrainer) -> None:
        job_id, term = self._building or ("", 0)
        if job_id == message.job_id and term < message.term:
            self._training = self._building = None

    @handles(GetTrainer)
    async def on_get_trainer(self, message: GetTrainer) -> TrainerAt:
        if self._building is None or self._building[0] != message.job_id:
            return TrainerAt(-1)
        training = self._training
        return TrainerAt(training.completed if training is not None else -1, self._building[1])

    @handles(Train, only=from_runner)
    async def on_train(self, message: Train) -> None:
        training = self._training
        if training is None:
            return
        if training.done is not None and training.done.iteration == message.iteration:
            try_tell(self, self._asker(), training.done)
            return
        training.asker = self._asker()
        if training.running != message.iteration:
            training.running = message.iteration
            self._run(training.rank, self._train(training, message), lambda: training.asker)

    @handles(Publish, only=from_runner)
    async def on_publish(self, message: Publish) -> None:
        training, asker = self._training, self._asker()
        if training is not None:
            self._run(training.rank, self._publish(training, message, asker), lambda: asker)

    @handles(SaveCheckpoint, only=from_runner)
    async def on_save(self, message: SaveCheckpoint) -> None:
        training, asker = self._training, self._asker()
        if training is not None:
            self._run(training.rank, self._save(training, message, asker), lambda: asker)

    @handles(EndJob, only=from_node)
    async def on_end_job(self, message: EndJob) -> None:
        if self._building is None or self._building[0] != message.job_id:
            return
        if not message.term or self._building[1] <= message.term:
            self._training = self._building = None

    async def _start(self, message: StartTrainer, asker: ActorRef) -> None:
        weights = self._plant.numerics.initial_weights(message.job)
        async with self.context.accelerator_turn():
            with self.context.busy("loading", "trainer"):
                await asyncio.sleep(self._plant.timings.load_s)
        folder = Path(message.run_folder)
        if message.completed:
            saved = _read(folder / checkpoint_path(message.completed))
            weights = saved.weights
            if saved.version != message.completed:
                raise SpotlightError(f"the checkpoint holds {saved.version} iterations")
        if self._building != (message.job_id, message.term):
            return
        self._training = _Training(
            message.job_id, message.rank, message.term, folder, message.completed, weights
        )
        if message.rank == 0:
            self._plant.history.add(
                "trainer",
                worker=self.context.name,
                term=message.term,
                completed=message.completed,
                weights=weights,
            )
        try_tell(self, asker, TrainerReady(message.rank))

    async def _train(self, training: _Training, message: Train) -> None:
        plant, loop = self._plant, asyncio.get_running_loop()
        began = loop.time()
        offers = {sample.bundle.key: sample.bundle for sample in message.samples}
        try:
            bundles = {key: await fetch_bundle(plant, offers[key]) for key in sorted(offers)}
            async with self.context.accelerator_turn():
                self._require(training, message.iteration, "train after")
                with self.context.busy("train", f"iteration {message.iteration}"):
                    seconds = plant.timings.training_s(message.iteration, len(message.samples))
                    await asyncio.sleep(seconds)
            samples = [
                (bundles[sample.bundle.key].rows[sample.row], sample.advantage)
                for sample in message.samples
            ]
            chance = plant.chance(training.job_id, training.term, message.iteration)
            before = training.weights
            update = plant.numerics.trained(message.iteration, before, samples, chance)
            training.weights = update.weights
            training.completed += 1
        finally:
            training.running = None
        if training.rank == 0:
            self._note(message.iteration, before, update, samples)
        training.done = Trained(
            message.iteration, training.rank, update.metrics, loop.time() - began
        )
        if training.asker is not None:
            try_tell(self, training.asker, training.done)

    def _note(
        self,
        iteration: int,
        before: str,
        update: Update,
        samples: list[tuple[fingerprints.Row, float]],
    ) -> None:
        rows = [row for row, _ in samples]
        self._plant.history.add(
            "train",
            iteration=iteration,
            weights=before,
            after=update.weights,
            samples=tuple(
                (row.request.id, row.weights, row.step, row.latents, advantage)
                for row, advantage in samples
            ),
            settings=tuple(
                (row.request.group, fingerprints.fingerprint(row.request.settings)) for row in rows
            ),
            expected=tuple(fingerprints.sample(row.weights, row.request) for row in rows),
        )

    async def _publish(self, training: _Training, message: Publish, asker: ActorRef) -> None:
        self._require(training, message.version, "publish")
        if self._plant.timings.publish_s:
            await asyncio.sleep(self._plant.timings.publish_s)

        async def put(role: str, weights: str) -> BundleOffer:
            data = msgspec.msgpack.encode(fingerprints.Weights(message.version, weights))
            key = f"weights/{message.version:06d}-{role}"
            return await until_transferred(
                lambda: self._plant.stores.upload(message.store, key, data),
                key,
                timings=self.context.timings.delivery,
            )

        rollout = await put("rollout", training.weights)
        evaluation = None
        if message.evaluation:
            evaluation = await put("evaluation", fingerprints.evaluation_weights(training.weights))
        try_tell(self, asker, Published(message.version, rollout, evaluation))

    async def _save(self, training: _Training, message: SaveCheckpoint, asker: ActorRef) -> None:
        async with self.context.accelerator_turn():
            if training.saved == message:  # its answer was lost, or is under way
                try_tell(self, asker, CheckpointSaved(message.iteration))
                return
            self._require(training, message.iteration, "save")
            path = training.run_folder / checkpoint_path(message.iteration)
            path.parent.mkdir(exist_ok=True)
            part = path.with_name(f"{path.name}.part")
            part.write_bytes(
                msgspec.msgpack.encode(fingerprints.Weights(training.completed, training.weights))
            )
            part.replace(path)
            training.saved = message
        try_tell(self, asker, CheckpointSaved(message.iteration))

    def _require(self, training: _Training, completed: int, what: str) -> None:
        if training.completed != completed or self._training is not training:
            raise SpotlightError(
                f"cannot {what} {completed} iterations: it has trained {training.completed}"
            )

    def _run(
        self, rank: int, work: Coroutine[Any, Any, None], asker: Callable[[], ActorRef | None]
    ) -> None:
        self.run_task(self._guarded(rank, work, asker))

    async def _guarded(
        self, rank: int, work: Coroutine[Any, Any, None], asker: Callable[[], ActorRef | None]
    ) -> None:
        try:
            await work
        except (SpotlightError, OSError) as error:
            self._plant.history.add("trainer_failed", worker=self.context.name, error=str(error))
            to = asker()
            if to is not None:
                lost_others = isinstance(error, TransportError)
                failed = TrainerFailed(rank, f"{type(error).__name__}: {error}", lost_others)
                try_tell(self, to, failed)

    def _asker(self) -> ActorRef:
        assert self.sender is not None, "trainer messages come from the coordinator"
        return self.sender


def _read(checkpoint: Path) -> fingerprints.Weights:
    return msgspec.msgpack.decode(checkpoint.read_bytes(), type=fingerprints.Weights)
