"""A trainer rank: optimizer steps on its accelerator, together with the other ranks.

Messages in: WorkerPlan (its leader); StartTrainer, Train, AddSlices, Publish, SaveState,
ExportModel (the job runner that the plan names); GetTrainer. Message out: TrainerReport, to whoever
asked, and of an update whose slices others may compute.

Work runs in the accelerator's thread, one after the other, on the model of the process, with which
its member denoises in between. Every error goes into a report.

The slices of an update are added in their order. The rank computes the next one itself unless it
has come from elsewhere, so nothing is waited for; others begin with the last one.

Invariants:
- An order is carried out once, however often it is given: while it is, it is only noted who asked
  last (a coordinator may have come back meanwhile); the last one of each kind is answered from
  memory, with the same report.
- What is trained, published or saved next is named by how many iterations are trained; an order
  that names another number is refused. Between the two parts of an iteration only the second one is
  trained, and nothing is published or saved.
- Nothing that was begun for ranks that were given up since is ever answered.
- It obeys nobody but the runner of its job, and leaves everything in stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import structlog

from spotlight.actors.protocol.delivery import try_tell, until_transferred
from spotlight.actors.protocol.down import WorkerPlan
from spotlight.actors.protocol.gradients import AddSlices, OpenUpdate, SlicesTaken
from spotlight.actors.protocol.trainer import (
    ExportModel,
    GetTrainer,
    Publish,
    SaveState,
    StartTrainer,
    Train,
    TrainedIteration,
    TrainerReport,
)
from spotlight.actors.runtime import (
    Actor,
    ActorRef,
    Message,
    from_an_actor,
    from_this_process,
    handles,
)
from spotlight.actors.worker.engine import Engine, Listener, Model, State, Trainer
from spotlight.actors.worker.foreign_slices import ForeignSlices
from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.trainer_outputs import TrainerOutputs, Training
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import SliceRefused, SpotlightError, TransferFailed, TransportError
from spotlight.tracebacks import foreign_traceback
from spotlight.types import BundleOffer, UpdateSlices

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Seat:
    """Which rank this one is, or is becoming."""

    job_id: str
    term: int
    rank: int


@dataclass
class _Order:
    asker: ActorRef
    """Who asked last."""


_Key = tuple[str, Hashable]
"""Kind of an order, and what makes it the same one."""


class TrainerRank(Actor):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext, engine: Engine, shared: SharedModel) -> None:
        self._context = context
        self._engine = engine
        self._shared = shared
        self._outputs = TrainerOutputs(context, engine)
        self._runner: ActorRef | None = None
        self._early: tuple[ActorRef, StartTrainer] | None = None
        """The latest order of one that the node has not named yet; it may do so in a moment."""
        self._seat: _Seat | None = None
        self._training: Training | None = None
        self._listener: Listener | None = None
        self._listens_at = ""
        self._latest: Train | None = None
        self._slices = ForeignSlices(self, engine)
        self._lending: asyncio.Task[None] | None = None
        self._opened: OpenUpdate | None = None
        """The update that is taken now, if others may compute slices of it."""
        self._orders: dict[_Key, _Order] = {}
        self._answers: dict[str, tuple[_Key, TrainerReport]] = {}
        """The answers to the last order of each kind that was carried out."""

    # --- who may say what ---

    def _from_runner(self, message: Message) -> bool:
        return self._runner is not None and self.sender == self._runner

    # --- the job ---

    @handles(WorkerPlan, only=from_this_process)
    async def on_plan(self, message: WorkerPlan) -> None:
        """Whose orders count from now on, whether others train instead, and how many threads the
        job has.
        """
        job, seat = message.job, self._seat
        if seat is not None and (
            job is None or job.job_id != seat.job_id or seat.term < job.trainers_term
        ):
            self._close()
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
        seat = _Seat(message.job_id, message.term, message.rank)
        if self._seat != seat:
            self._close()
            self._seat = seat
            if message.rank == 0 and message.world > 1:
                self._listener = self._engine.listen()
                self._listens_at = self._listener.address
        if self._listens_at and self._training is None:
            try_tell(self, asker, self._report())  # the others come while it is built
        self._obey(("start", seat), lambda: self._start(message, seat), asker)

    @handles(GetTrainer)
    async def on_get_trainer(self, message: GetTrainer) -> TrainerReport:
        """Where the trainer of a job stands."""
        is_seated = self._seat is not None and self._seat.job_id == message.job_id
        return self._report() if is_seated else TrainerReport()

    def _report(self) -> TrainerReport:
        if self._seat is None:
            return TrainerReport()
        completed = self._training.completed if self._training is not None else -1
        seat = self._seat
        return TrainerReport(seat.term, seat.rank, completed, self._listens_at, opened=self._opened)

    @handles(Train, only=_from_runner)
    async def on_train(self, message: Train) -> None:
        """Take one iteration's optimizer steps, when the weights are taken that are wanted."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        if message.publish is not None:
            await self.on_publish(message.publish)
        if message.save is not None:
            await self.on_save(message.save)
        self._latest = message
        kind = f"train {message.part}"  # also the first part is answered from memory, after both
        self._obey((kind, message.iteration), lambda: self._train(training, message))
        if self._opened is not None and self.sender is not None:
            try_tell(self, self.sender, self._report())

    @handles(AddSlices, only=_from_runner)
    async def on_add_slices(self, message: AddSlices) -> None:
        """Others have computed slices of an update."""
        self._slices.note(message)

    @handles(Publish, only=_from_runner)
    async def on_publish(self, message: Publish) -> None:
        """Put the weights into the node's store."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._obey(("publish", message), lambda: self._publish(training, message))

    @handles(SaveState, only=_from_runner)
    async def on_save(self, message: SaveState) -> None:
        """Leave the state of training in stores."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._obey(("save", message), lambda: self._save(training, message))

    @handles(ExportModel, only=_from_runner)
    async def on_export(self, message: ExportModel) -> None:
        """Leave the weights of a checkpoint in a store, for others to load."""
        training = self._training
        if training is None:
            return self._log_unstarted(message)
        self._obey(("export", message), lambda: self._export(training, message))

    async def stopping(self, reason: str) -> None:
        """Leave the group."""
        self._close()

    # --- orders ---

    def _obey(
        self,
        key: _Key,
        work: Callable[[], Coroutine[Any, Any, TrainerReport]],
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
            self.run_task(self._carry_out(key, order, work))

    async def _carry_out(
        self, key: _Key, order: _Order, work: Callable[[], Coroutine[Any, Any, TrainerReport]]
    ) -> None:
        try:
            answer = await work()
        except (SpotlightError, OSError, ValueError, RuntimeError) as error:
            log.warning("order_failed", order=key[0], exc_info=error)
            answer = msgspec.structs.replace(
                self._report(),
                error=f"{type(error).__name__}: {error}",
                lost_others=isinstance(error, TransportError),
                lost_state=isinstance(error, TransferFailed) and key[0] == "start",
                traceback=foreign_traceback(error),
            )
        if self._orders.get(key) is not order or self._context.ends_because:
            return  # others train by now, or will
        if answer.error:
            log.error("trainer_failed", rank=answer.rank, reason=answer.error)
        del self._orders[key]
        if not answer.error:
            self._answers[key[0]] = (key, answer)
        try_tell(self, order.asker, answer)

    async def _start(self, message: StartTrainer, seat: _Seat) -> TrainerReport:
        listener, self._listener = self._listener, None
        rendezvous = message.rendezvous or self._listens_at  # rank 0 is where the others come to

        def require_wanted() -> None:
            if self._seat != seat:
                raise SpotlightError("given up before its state and all ranks were there")

        def build() -> tuple[Model, Trainer]:
            shared, spec = self._shared, message.job.model
            own = bool(state) or message.job.training.sharded  # and not of what is in the model
            model = shared.load(spec) if own else shared.load_untrained(spec)
            with shared.training(model):
                trainer = self._engine.build_trainer(
                    message, model, state, rendezvous, listener, require_wanted
                )
            return model, trainer

        with self._context.busy("loading", "trainer"):
            state = [await self._fetch_part(part, require_wanted) for part in message.own_parts]
            await self._shared.fetch_images(message.images)
            await self._shared.fetch(message.job.model)
            model, trainer = await self._context.on_accelerator(build)
        if self._seat == seat:
            self._training = Training(
                message.job, message.job_id, message.rank, model, trainer, message.completed
            )
        else:
            trainer.close()
        return self._report()

    async def _fetch_part(self, offers: Sequence[BundleOffer], wanted: Callable[[], None]) -> State:
        """A part, from whoever has it. Raises `TransferFailed` when nobody has it any more."""

        async def attempt() -> State:
            for offer in offers[:-1]:
                try:
                    return await self._engine.fetch_state(offer)
                except TransferFailed as error:
                    log.info("state_elsewhere", key=offer.key, reason=str(error))
            return await self._engine.fetch_state(offers[-1])

        timings, what = self._context.timings.delivery, "the state of training"
        return await until_transferred(attempt, what, timings=timings, require_wanted=wanted)

    async def _train(self, training: Training, message: Train) -> TrainerReport:
        loop = asyncio.get_running_loop()
        started = loop.time()

        def begin(bundles: dict[str, bytes]) -> None:
            begun = message.part == "rest"
            training.is_under_way = False  # what failed half-way is given up
            training.require_completed(message.iteration, "train after", begun=begun)
            with self._shared.training(training.model):
                training.trainer.begin(message, bundles)
            training.is_under_way = True

        def end() -> dict[str, float]:
            metrics = training.trainer.metrics()
            training.is_under_way = False
            training.begun = message.part == "first"
            training.completed += not training.begun
            return metrics

        self._slices.taken = SlicesTaken()
        with self._context.busy("train", f"iteration {message.iteration}"):
            bundles = await self._fetch_samples(training.trainer, message)
            await self._context.on_accelerator(lambda: begin(bundles))
            try:
                while (share := training.trainer.update) is not None:
                    await self._take_update(training, share)
            finally:
                self._close_update()
            metrics = await self._context.on_accelerator(end)
        seconds = loop.time() - started
        taken = self._slices.taken
        trained = TrainedIteration(message.iteration, metrics, seconds, message.part, taken)
        return msgspec.structs.replace(self._report(), trained=trained)

    async def _take_update(self, training: Training, share: UpdateSlices) -> None:
        """Add the slices in their order, and take the optimizer step."""
        trainer, slices = training.trainer, self._slices
        self._close_update()
        slices.begin(trainer.updates)
        await self._lend(training, share)

        def work(does: Callable[[], None]) -> None:
            training.require_wanted()
            with self._shared.training(training.model):
                does()

        while (place := trainer.next_slice) < len(share.slices):
            gradient = slices.take(place)
            if gradient is None or not await self._add(trainer, gradient, work):
                compute = partial(trainer.compute, partial(slices.is_missing, place))
                began = self._context.seconds()
                await self._context.on_accelerator(partial(work, compute))
                if trainer.next_slice > place:
                    slices.count_own(self._context.seconds() - began)
        await self._context.on_accelerator(partial(work, trainer.step))

    async def _add(
        self, trainer: Trainer, gradient: bytes, work: Callable[[Callable[[], None]], None]
    ) -> bool:
        """Add the gradient of the next slice; False if it is not one."""
        try:
            await self._context.on_accelerator(partial(work, partial(trainer.add, gradient)))
        except (SliceRefused, TransferFailed) as error:
            log.error("slice_refused", place=trainer.next_slice, reason=str(error))
            return False
        self._slices.count_other()
        return True

    async def _lend(self, training: Training, share: UpdateSlices) -> None:
        """Let others compute slices of an update, where somebody would: what they need is copied
        now, and left for them while the rank goes on. A rank with a single slice lends its part of
        the weights, too, as other ranks may have more."""
        latest = self._latest
        store = latest.lend_to if latest is not None else None
        if store is None or (len(share.slices) < 2 and training.job.training.ranks == 1):
            return
        update = training.trainer.updates, share
        copies = await self._outputs.copy_lent(training)

        async def tell() -> None:
            try:
                self._opened = await self._outputs.lend(training, update, copies, store)
            except TransferFailed as error:  # the rank computes all slices
                log.info("update_not_lent", update=update[0], reason=str(error))
            else:
                if self._runner is not None:
                    try_tell(self, self._runner, self._report())

        self._lending = self.run_task(tell())

    def _close_update(self) -> None:
        if self._lending is not None:
            self._lending.cancel()
        self._lending = self._opened = None
        self._slices.begin(-1)

    async def _fetch_samples(self, trainer: Trainer, message: Train) -> dict[str, bytes]:
        """By key; from where the latest order for the iteration says that they are, as a
        coordinator that comes back has its store elsewhere. Raises `TransferFailed`.
        """

        async def attempt() -> dict[str, bytes]:
            latest, what = self._latest, (message.iteration, message.part)
            again = latest is not None and (latest.iteration, latest.part) == what
            offers = trainer.wants(latest if latest is not None and again else message)
            data = await asyncio.gather(*map(self._engine.fetch, offers))
            return {offer.key: blob for offer, blob in zip(offers, data, strict=True)}

        timings = self._context.timings.delivery
        return await until_transferred(attempt, "samples", timings=timings)

    async def _publish(self, training: Training, message: Publish) -> TrainerReport:
        published = await self._outputs.publish(training, message)
        return msgspec.structs.replace(self._report(), published=published)

    async def _save(self, training: Training, message: SaveState) -> TrainerReport:
        saved = await self._outputs.save(training, message)
        return msgspec.structs.replace(self._report(), saved=saved)

    async def _export(self, training: Training, message: ExportModel) -> TrainerReport:
        exported = await self._outputs.export(training, message)
        return msgspec.structs.replace(self._report(), exported=exported)

    def _log_unstarted(self, message: Message) -> None:
        """A job that has ended, or failed to start and said so, has nothing to train."""
        log.warning("trainer_not_started", ignored=type(message).__name__)

    def _close(self) -> None:
        if self._training is not None:
            self._training.given_up = True
            self._training.trainer.close()
        self._close_update()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._listens_at = ""
        self._seat = self._training = None
        self._orders.clear()
        self._answers.clear()
