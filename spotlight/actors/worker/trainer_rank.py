"""A trainer rank: optimizer steps on its accelerator, together with the other ranks.

Messages in: WorkerPlan (its leader); StartTrainer, DropTrainer, Train, Publish, SaveCheckpoint (the
job runner that the plan names); GetTrainer. Messages out: TrainerListens, TrainerReady,
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
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import structlog

from spotlight.actors.protocol import (
    CheckpointSaved,
    DropTrainer,
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
    WorkerPlan,
)
from spotlight.actors.protocol.delivery import try_tell, until_transferred
from spotlight.actors.runtime import (
    Actor,
    ActorRef,
    Message,
    from_an_actor,
    from_this_process,
    handles,
)
from spotlight.actors.worker.engine import Engine, Listener, Trainer
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import SpotlightError, TransportError
from spotlight.store.run_folder import checkpoint_path
from spotlight.types import BundleOffer

log = structlog.get_logger(__name__)


@dataclass
class _Training:
    job_id: str
    rank: int
    trainer: Trainer
    run_folder: Path
    completed: int
    """Iterations trained, with those before the checkpoint that it began from."""
    given_up: bool = False
    """Others are the trainer ranks now."""

    def require_completed(self, iterations: int, what: str) -> None:
        """In the accelerator's thread, so that nothing comes between this and what it is about."""
        if self.given_up:
            raise SpotlightError(f"asked to {what} iteration {iterations}, but it was given up")
        if self.completed != iterations:
            raise SpotlightError(
                f"asked to {what} iteration {iterations}, but {self.completed} are trained"
            )


@dataclass
class _Order:
    asker: ActorRef
    """Who asked last."""


_Key = tuple[str, Hashable]
"""Kind of an order, and what makes it the same one."""


class TrainerRank(Actor):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._runner: ActorRef | None = None
        self._early: tuple[ActorRef, StartTrainer] | None = None
        """The latest order of one that the node has not named yet; it may do so in a moment."""
        self._term: tuple[str, int] | None = None
        """Job and term of the ranks that this one is, or is becoming."""
        self._training: _Training | None = None
        self._listener: Listener | None = None
        self._rendezvous = ""
        self._latest: Train | None = None
        self._orders: dict[_Key, _Order] = {}
        self._answers: dict[str, tuple[_Key, Message]] = {}

    # --- who may say what ---

    def _from_runner(self, message: Message) -> bool:
        return self._runner is not None and self.sender == self._runner

    # --- the job ---

    @handles(WorkerPlan, only=from_this_process)
    async def on_plan(self, message: WorkerPlan) -> None:
        """Whose orders count from now on, and how many threads the job has."""
        job = message.job
        if self._term is not None and (job is None or job.job_id != self._term[0]):
            self._close()  # it belongs to another job
        self._runner = job.membership.runner if job is not None else None
        if job is not None and job.spec is not None:
            self._context.use_threads(job.spec.threads)
        if self._early is not None and self._early[0] == self._runner:
            (runner, order), self._early = self._early, None
            self._begin(order, runner)

    @handles(StartTrainer, only=from_an_actor)
    async def on_start(self, message: StartTrainer) -> None:
        """Begin; or keep the order until the node names its sender, as the two come over different
        connections.
        """
        assert self.sender is not None
        if self.sender == self._runner:
            self._begin(message, self.sender)
        else:
            log.info("start_before_plan", sender=str(self.sender))
            self._early = (self.sender, message)

    def _begin(self, message: StartTrainer, asker: ActorRef) -> None:
        term = (message.job_id, message.term)
        if self._term != term:
            self._close()
            self._term = term
            if message.rank == 0 and message.world > 1:
                self._listener = self._engine.listen()
                self._rendezvous = self._listener.address
        if self._rendezvous:
            try_tell(self, asker, TrainerListens(self._rendezvous, message.term))
        self._obey(("start", term), message.rank, lambda: self._start(message, term), asker)

    @handles(DropTrainer, only=_from_runner)
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

    @handles(Train, only=_from_runner)
    async def on_train(self, message: Train) -> None:
        """Take one iteration's optimizer steps."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._latest = message
        self._obey(
            ("train", message.iteration), training.rank, lambda: self._train(training, message)
        )

    @handles(Publish, only=_from_runner)
    async def on_publish(self, message: Publish) -> None:
        """Put the weights into the node's store."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._obey(("publish", message), training.rank, lambda: self._publish(training, message))

    @handles(SaveCheckpoint, only=_from_runner)
    async def on_save(self, message: SaveCheckpoint) -> None:
        """Write a checkpoint, and export the model that was validated if asked."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._obey(("save", message), training.rank, lambda: self._save(training, message))

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
            log.exception("trainer_failed", rank=rank, reason=str(error))
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
        rendezvous = message.rendezvous or self._rendezvous  # rank 0 is where the others come to
        with self._context.busy("loading", "trainer"):
            trainer = await self._context.on_accelerator(
                lambda: self._engine.build_trainer(message, rendezvous, listener)
            )
        if self._term == term:
            folder = Path(message.run_folder)
            self._training = _Training(
                message.job_id, message.rank, trainer, folder, message.completed
            )
        else:
            trainer.close()
        return TrainerReady(message.rank)

    async def _train(self, training: _Training, message: Train) -> Message:
        loop = asyncio.get_running_loop()
        started = loop.time()

        def train(bundles: dict[str, bytes]) -> dict[str, float]:
            training.require_completed(message.iteration, "train after")
            metrics = training.trainer.train(message, bundles)
            training.completed += 1
            return metrics

        with self._context.busy("train", f"iteration {message.iteration}"):
            bundles = await self._fetch_samples(training.trainer, message)
            metrics = await self._context.on_accelerator(lambda: train(bundles))
        return Trained(message.iteration, training.rank, metrics, loop.time() - started)

    async def _fetch_samples(self, trainer: Trainer, message: Train) -> dict[str, bytes]:
        """By key; from where the latest order for the iteration says that they are, as a
        coordinator that comes back has its store elsewhere. Raises `TransferFailed`.
        """

        async def attempt() -> dict[str, bytes]:
            latest = self._latest
            again = latest is not None and latest.iteration == message.iteration
            offers = trainer.wants(latest if latest is not None and again else message)
            data = await asyncio.gather(*map(self._engine.fetch, offers))
            return {offer.key: blob for offer, blob in zip(offers, data, strict=True)}

        timings = self._context.timings.delivery
        return await until_transferred(attempt, "samples", timings=timings)

    async def _publish(self, training: _Training, message: Publish) -> Message:
        async def put(role: Literal["rollout", "evaluation"]) -> BundleOffer:
            def packed() -> bytes:
                training.require_completed(message.version, "publish")
                return training.trainer.pack_weights(role)

            data = await self._context.on_accelerator(packed)
            key = f"weights/{message.version:06d}-{role}"
            upload = self._engine.upload
            return await until_transferred(
                lambda: upload(message.store, key, data),
                key,
                timings=self._context.timings.delivery,
            )

        rollout = await put("rollout")
        evaluation = await put("evaluation") if message.evaluation else None
        return Published(message.version, rollout, evaluation)

    async def _save(self, training: _Training, message: SaveCheckpoint) -> Message:
        def save() -> None:
            training.require_completed(message.iteration, "save")
            path = training.run_folder / checkpoint_path(message.iteration)
            metadata = {"job": training.job_id, "completed": str(message.iteration)}
            training.trainer.save(path, metadata)
            if message.export:
                training.trainer.export(training.run_folder / "export")

        await self._context.on_accelerator(save)
        return CheckpointSaved(message.iteration)

    def _log_unstarted(self, message: Message) -> None:
        """A job that has ended, or failed to start and said so, has nothing to train."""
        log.warning("trainer_not_started", ignored=type(message).__name__)

    def _close(self) -> None:
        if self._training is not None:
            self._training.given_up = True
            self._training.trainer.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._rendezvous = ""
        self._term = self._training = None
        self._orders.clear()
        self._answers.clear()
