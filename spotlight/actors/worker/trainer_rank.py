"""A trainer rank: optimizer steps on its accelerator, together with the other ranks.

Messages in: PrepareJob, EndJob (node); StartTrainer, DropTrainer, Train, Publish, SaveCheckpoint
(the job runner that `PrepareJob` names); GetTrainer. Messages out: TrainerListens, TrainerReady,
TrainerAt, Trained, Published, CheckpointSaved, or TrainerFailed, to whoever asked.

Work runs in the accelerator's thread, one after the other. Every error becomes a `TrainerFailed`.

Invariants:
- An order is carried out once, however often it is given: while it is, it is only noted who asked
  last (a coordinator may have come back meanwhile); the last one of each kind is answered from
  memory.
- What is trained, published or saved next is named by how many iterations are trained; an order
  that names another number is refused.
- Nothing that was begun for ranks that were given up since is ever answered.
- It obeys nobody but the runner of its job, and writes nowhere but below the run folder.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor

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
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import SpotlightError, TransportError
from spotlight.store.run_folder import checkpoint_path
from spotlight.training.checkpoints import load_checkpoint, save_checkpoint
from spotlight.training.export import export_transformer
from spotlight.training.trainer import Trainer, TrainingBatch
from spotlight.transport.collectives import Group, init_group, listen
from spotlight.transport.control import Message
from spotlight.transport.tensors import fetch, upload
from spotlight.transport.tensors.bundles import pack, unpack
from spotlight.types import BundleOffer

log = structlog.get_logger(__name__)


@dataclass
class _Training:
    job_id: str
    rank: int
    model: DiffusionModel
    trainer: Trainer
    group: Group | None
    run_folder: Path
    completed: int
    """Iterations trained, with those before the checkpoint that it began from."""


@dataclass
class _Order:
    asker: ActorRef
    """Who asked last."""


_Key = tuple[str, Hashable]
"""Kind of an order, and what makes it the same one."""


class TrainerRank(ObedientTrainer):
    """See the module's docstring. `host` is where other ranks reach this machine."""

    def __init__(self, context: WorkerContext, host: str) -> None:
        super().__init__(context)
        self._host = host
        self._term: tuple[str, int] | None = None
        """Job and term of the ranks that this one is, or is becoming."""
        self._training: _Training | None = None
        self._listener: socket.socket | None = None
        self._rendezvous = ""
        self._latest: Train | None = None
        self._orders: dict[_Key, _Order] = {}
        self._answers: dict[str, tuple[_Key, Message]] = {}

    # --- the job ---

    def begin(self, message: StartTrainer, asker: ActorRef) -> None:
        """See `ObedientTrainer`."""
        term = (message.job_id, message.term)
        if self._term != term:
            self._close()
            self._term = term
            if message.rank == 0 and message.world > 1:
                self._listener = listen(self._host)
                self._rendezvous = f"{self._host}:{self._listener.getsockname()[1]}"
        if self._rendezvous:
            try_tell(self, asker, TrainerListens(self._rendezvous, message.term))
        self._obey(("start", term), message.rank, lambda: self._start(message, term), asker)

    @handles(DropTrainer, only=from_runner)
    async def on_drop(self, message: DropTrainer) -> None:
        """Free what an earlier rank of the job holds."""
        job_id, term = self._term or ("", 0)
        if job_id == message.job_id and term < message.term:
            self._close()

    @handles(GetTrainer)
    async def on_get_trainer(self, message: GetTrainer) -> TrainerAt:
        """How far the trainer of a job is."""
        if self._term is None or self._term[0] != message.job_id:
            return TrainerAt(-1)
        training = self._training
        return TrainerAt(training.completed if training is not None else -1, self._term[1])

    @handles(Train, only=from_runner)
    async def on_train(self, message: Train) -> None:
        """Take one iteration's optimizer steps."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._latest = message
        self._obey(
            ("train", message.iteration), training.rank, lambda: self._train(training, message)
        )

    @handles(Publish, only=from_runner)
    async def on_publish(self, message: Publish) -> None:
        """Put the weights into the node's store."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._obey(("publish", message), training.rank, lambda: self._publish(training, message))

    @handles(SaveCheckpoint, only=from_runner)
    async def on_save(self, message: SaveCheckpoint) -> None:
        """Write a checkpoint, and export the model that was validated if asked."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._obey(("save", message), training.rank, lambda: self._save(training, message))

    @handles(EndJob, only=from_node)
    async def on_end_job(self, message: EndJob) -> None:
        """Free what belongs to the job."""
        if self._term is None or self._term[0] != message.job_id:
            return
        if not message.term or self._term[1] <= message.term:
            self._close()

    async def stopping(self, reason: str) -> None:
        """Leave the group."""
        self._close()

    # --- orders ---

    def _obey(
        self,
        key: _Key,
        rank: int,
        work: Callable[[], Coroutine[Any, Any, Message]],
        asker: ActorRef | None = None,
    ) -> None:
        asker = asker or self.sender
        assert asker is not None, "orders come from the job runner"
        last, answer = self._answers.get(key[0], (None, None))
        if answer is not None and last == key:
            try_tell(self, asker, answer)
        elif key in self._orders:
            self._orders[key].asker = asker
        else:
            order = self._orders[key] = _Order(asker)
            self.run_task(self._carry_out(key, order, rank, work()))

    async def _carry_out(
        self, key: _Key, order: _Order, rank: int, work: Coroutine[Any, Any, Message]
    ) -> None:
        try:
            answer = await work
        except (SpotlightError, OSError, ValueError, RuntimeError) as error:
            log.exception("trainer_failed", rank=rank)
            lost_others = isinstance(error, TransportError)
            answer = TrainerFailed(rank, f"{type(error).__name__}: {error}", lost_others)
        if self._orders.get(key) is not order:
            return
        del self._orders[key]
        if not isinstance(answer, TrainerFailed):
            self._answers[key[0]] = (key, answer)
        try_tell(self, order.asker, answer)

    async def _start(self, message: StartTrainer, term: tuple[str, int]) -> Message:
        listener, self._listener = self._listener, None
        limit_s = self.context.timings.worker.trainer_collective_limit_s
        rendezvous = message.rendezvous or self._rendezvous  # rank 0 is where the others come to
        with self.context.busy("loading", "trainer"):
            training = await self.context.on_accelerator(
                lambda: _build(message, rendezvous, listener, limit_s)
            )
        if self._term == term:
            self._training = training
        elif training.group is not None:
            training.group.close()
        return TrainerReady(message.rank)

    async def _train(self, training: _Training, message: Train) -> Message:
        loop = asyncio.get_running_loop()
        started = loop.time()

        def train(bundles: dict[str, dict[str, Tensor]]) -> dict[str, float]:
            _require_completed(training, message.iteration, "train after")
            metrics = training.trainer.train(message.iteration, _assemble(message, bundles))
            training.completed += 1
            return metrics

        with self.context.busy("train", f"iteration {message.iteration}"):
            bundles = await self._fetch_samples(message)
            metrics = await self.context.on_accelerator(lambda: train(bundles))
        return Trained(message.iteration, training.rank, metrics, loop.time() - started)

    async def _fetch_samples(self, message: Train) -> dict[str, dict[str, Tensor]]:
        """By key; from where the latest order for the iteration says that they are, as a
        coordinator that comes back has its store elsewhere. Raises `TransferFailed`.
        """

        async def attempt() -> dict[str, dict[str, Tensor]]:
            latest = self._latest
            again = latest is not None and latest.iteration == message.iteration
            samples = latest.samples if latest is not None and again else message.samples
            return await _fetch_all({sample.bundle for sample in samples})

        return await until_transferred(attempt, "samples", timings=self.context.timings.delivery)

    async def _publish(self, training: _Training, message: Publish) -> Message:
        trainer = training.trainer

        async def put(role: str, state: Callable[[], dict[str, Tensor]]) -> BundleOffer:
            def packed() -> bytes:
                _require_completed(training, message.version, "publish")
                return pack(state())

            data = await self.context.on_accelerator(packed)
            key = f"weights/{message.version:06d}-{role}"
            return await until_transferred(
                lambda: upload(message.store, key, data),
                key,
                timings=self.context.timings.delivery,
            )

        rollout = await put("rollout", trainer.rollout_state)
        evaluation = None
        if message.evaluation:
            evaluation = await put("evaluation", trainer.evaluation_state)
        return Published(message.version, rollout, evaluation)

    async def _save(self, training: _Training, message: SaveCheckpoint) -> Message:
        def save() -> None:
            _require_completed(training, message.iteration, "save")
            state = training.trainer.state_dict()
            metadata = {"job": training.job_id, "completed": str(message.iteration)}
            path = training.run_folder / checkpoint_path(message.iteration)
            save_checkpoint(path, state, metadata)
            if message.export:
                folder = training.run_folder / "export"
                # Left by a run that was killed after exporting and before its last commit.
                shutil.rmtree(folder, ignore_errors=True)
                # The average: the weights whose validation score is the run's.
                export_transformer(training.model, training.trainer.evaluation_state(), folder)

        await self.context.on_accelerator(save)
        return CheckpointSaved(message.iteration)

    def _log_unstarted(self, message: Message) -> None:
        """A job that has ended, or failed to start and said so, has nothing to train."""
        log.warning("trainer_not_started", ignored=type(message).__name__)

    def _close(self) -> None:
        if self._training is not None and self._training.group is not None:
            self._training.group.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._rendezvous = ""
        self._term = self._training = None
        self._orders.clear()
        self._answers.clear()


def _build(
    message: StartTrainer,
    rendezvous: str,
    listener: socket.socket | None,
    collective_limit_s: float,
) -> _Training:
    job = message.job
    group = None
    if message.world > 1:
        host, _, port = rendezvous.rpartition(":")
        group = init_group(
            message.rank,
            message.world,
            host,
            int(port),
            timeout_s=collective_limit_s,
            listener=listener,
        )
    model = load_model(job.model)
    trainer = Trainer(
        model,
        job.training,
        job.sampler,
        seed=job.seed,
        rank=message.rank,
        world=message.world,
        group=group,
    )
    folder = Path(message.run_folder)
    if message.completed:
        state, _ = load_checkpoint(folder / checkpoint_path(message.completed))
        trainer.load_state_dict(state)
    return _Training(message.job_id, message.rank, model, trainer, group, folder, message.completed)


def _require_completed(training: _Training, iterations: int, what: str) -> None:
    """In the accelerator's thread, so that nothing comes between this and what it is about."""
    if training.completed != iterations:
        raise SpotlightError(
            f"asked to {what} iteration {iterations}, but {training.completed} are trained"
        )


async def _fetch_all(offers: set[BundleOffer]) -> dict[str, dict[str, Tensor]]:
    ordered = sorted(offers, key=lambda offer: offer.key)
    data = await asyncio.gather(*(fetch(offer) for offer in ordered))
    return {offer.key: unpack(blob) for offer, blob in zip(ordered, data, strict=True)}


def _assemble(message: Train, bundles: dict[str, dict[str, Tensor]]) -> TrainingBatch:
    """Rows in the order of the message, whoever denoised them."""

    def rows(name: str) -> Tensor:
        return torch.stack([bundles[s.bundle.key][name][s.row] for s in message.samples])

    # Without a window of noise there are states of no step.
    stochastic = all(bundle["window_states"].shape[1] for bundle in bundles.values())
    return TrainingBatch(
        prompts=[sample.prompt for sample in message.samples],
        latents=rows("latents"),
        advantages=torch.tensor([sample.advantage for sample in message.samples]),
        window_states=rows("window_states") if stochastic else None,
        log_probs=rows("log_probs") if stochastic else None,
        window_start=message.window_start,
    )
