"""A trainer rank: optimizer steps on its accelerator, together with the other ranks.

Messages in: ReservePort, StartTrainer, Train, Publish, SaveCheckpoint, EndJob. Messages out:
TrainerReady, Trained, Published, CheckpointSaved, or TrainerFailed, to whoever asked.

Work runs in the accelerator's thread, one after the other; a repeated `Train` of an iteration that
is done is answered, not run again. Every error becomes a `TrainerFailed`.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor

from spotlight.actors.delivery import try_tell
from spotlight.actors.messages import (
    CheckpointSaved,
    EndJob,
    PortReserved,
    Publish,
    Published,
    ReservePort,
    SaveCheckpoint,
    StartTrainer,
    Train,
    Trained,
    TrainerFailed,
    TrainerReady,
)
from spotlight.actors.runtime import Actor, ActorRef, handles
from spotlight.actors.worker_state import WorkerContext
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import SpotlightError
from spotlight.training.checkpoints import load_checkpoint, save_checkpoint
from spotlight.training.export import export_transformer
from spotlight.training.trainer import Trainer, TrainingBatch
from spotlight.transport.collectives import Group, init_group, listen
from spotlight.transport.control import Message
from spotlight.transport.tensors import BundleOffer, fetch, upload
from spotlight.transport.tensors.bundles import pack, unpack

log = structlog.get_logger(__name__)

_COLLECTIVE_LIMIT_S = 120.0


@dataclass
class _Training:
    job_id: str
    rank: int
    model: DiffusionModel
    trainer: Trainer
    group: Group | None
    done: Trained | None = None


class TrainerRank(Actor):
    """See the module's docstring. `host` is where other ranks reach this machine."""

    def __init__(self, context: WorkerContext, host: str) -> None:
        self._context = context
        self._host = host
        self._training: _Training | None = None
        self._listener: socket.socket | None = None

    @handles(ReservePort)
    async def on_reserve_port(self, message: ReservePort) -> PortReserved:
        """Listen on a free port; rank 0's rendezvous takes the socket over."""
        self._close()
        self._listener = listen(self._host)
        return PortReserved(f"{self._host}:{self._listener.getsockname()[1]}")

    @handles(StartTrainer)
    async def on_start(self, message: StartTrainer) -> None:
        """Build the trainer, from a checkpoint if one is named."""
        listener, self._listener = self._listener, None
        self._close()
        self._run(message.rank, self._start(message, listener, self._asker()))

    @handles(Train)
    async def on_train(self, message: Train) -> None:
        """Take one iteration's optimizer steps."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        if training.done is not None and training.done.iteration == message.iteration:
            try_tell(self, self._asker(), training.done)
            return
        self._run(training.rank, self._train(training, message, self._asker()))

    @handles(Publish)
    async def on_publish(self, message: Publish) -> None:
        """Put the weights into the node's store."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._run(training.rank, self._publish(training, message, self._asker()))

    @handles(SaveCheckpoint)
    async def on_save(self, message: SaveCheckpoint) -> None:
        """Write a checkpoint, and export the model if asked."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._run(training.rank, self._save(training, message, self._asker()))

    @handles(EndJob)
    async def on_end_job(self, message: EndJob) -> None:
        """Free what belongs to the job."""
        self._close()

    async def stopping(self, reason: str) -> None:
        """Leave the group."""
        self._close()

    async def _start(
        self, message: StartTrainer, listener: socket.socket | None, asker: ActorRef
    ) -> None:
        with self._context.busy("loading", "trainer"):
            self._training = await self._context.on_accelerator(lambda: _build(message, listener))
        try_tell(self, asker, TrainerReady(message.rank))

    async def _train(self, training: _Training, message: Train, asker: ActorRef) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        with self._context.busy("train", f"iteration {message.iteration}"):
            bundles = await _fetch_all({sample.bundle for sample in message.samples})
            metrics = await self._context.on_accelerator(
                lambda: training.trainer.train(message.iteration, _assemble(message, bundles))
            )
        training.done = Trained(message.iteration, training.rank, metrics, loop.time() - started)
        try_tell(self, asker, training.done)

    async def _publish(self, training: _Training, message: Publish, asker: ActorRef) -> None:
        async def put(role: str, state: dict[str, Tensor]) -> BundleOffer:
            data = await self._context.on_accelerator(lambda: pack(state))
            return await upload(message.store, f"weights/{message.version:06d}-{role}", data)

        rollout = await put("rollout", training.trainer.rollout_state())
        evaluation = None
        if message.evaluation:
            evaluation = await put("evaluation", training.trainer.evaluation_state())
        try_tell(self, asker, Published(message.version, rollout, evaluation))

    async def _save(self, training: _Training, message: SaveCheckpoint, asker: ActorRef) -> None:
        def save() -> None:
            state = training.trainer.state_dict()
            metadata = {"job": training.job_id, "completed": str(message.iteration)}
            save_checkpoint(Path(message.path), state, metadata)
            if message.export_to:
                # Left by a run that was killed after exporting and before its last commit.
                shutil.rmtree(message.export_to, ignore_errors=True)
                export_transformer(training.model, Path(message.export_to))

        await self._context.on_accelerator(save)
        try_tell(self, asker, CheckpointSaved(message.iteration, message.path))

    def _run(self, rank: int, work: Coroutine[Any, Any, None]) -> None:
        self.run_task(self._guarded(rank, work, self._asker()))

    async def _guarded(self, rank: int, work: Coroutine[Any, Any, None], asker: ActorRef) -> None:
        try:
            await work
        except (SpotlightError, OSError, ValueError, RuntimeError) as error:
            log.exception("trainer_failed", rank=rank)
            try_tell(self, asker, TrainerFailed(rank, f"{type(error).__name__}: {error}"))

    def _asker(self) -> ActorRef:
        assert self.sender is not None, "trainer messages come from the coordinator"
        return self.sender

    def _log_unstarted(self, message: Message) -> None:
        """A job that has ended, or failed to start and said so, has nothing to train."""
        log.warning("trainer_not_started", ignored=type(message).__name__)

    def _close(self) -> None:
        if self._training is not None and self._training.group is not None:
            self._training.group.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._training = None


def _build(message: StartTrainer, listener: socket.socket | None) -> _Training:
    job = message.job
    group = None
    if message.world > 1:
        host, _, port = message.rendezvous.rpartition(":")
        group = init_group(
            message.rank,
            message.world,
            host,
            int(port),
            timeout_s=_COLLECTIVE_LIMIT_S,
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
    if message.checkpoint:
        state, _ = load_checkpoint(Path(message.checkpoint))
        trainer.load_state_dict(state)
    return _Training(message.job_id, message.rank, model, trainer, group)


async def _fetch_all(offers: set[BundleOffer]) -> dict[str, dict[str, Tensor]]:
    ordered = sorted(offers, key=lambda offer: offer.key)
    data = await asyncio.gather(*(fetch(offer) for offer in ordered))
    return {offer.key: unpack(blob) for offer, blob in zip(ordered, data, strict=True)}


def _assemble(message: Train, bundles: dict[str, dict[str, Tensor]]) -> TrainingBatch:
    """Rows in the order of the message, whoever denoised them."""

    def rows(name: str) -> Tensor:
        return torch.stack([bundles[s.bundle.key][name][s.row] for s in message.samples])

    stochastic = all("window_states" in bundle for bundle in bundles.values())
    return TrainingBatch(
        prompts=[sample.prompt for sample in message.samples],
        latents=rows("latents"),
        advantages=torch.tensor([sample.advantage for sample in message.samples]),
        window_states=rows("window_states") if stochastic else None,
        log_probs=rows("log_probs") if stochastic else None,
        window_start=message.window_start,
    )
