"""What a trainer rank leaves in stores: its part of the weights, the state of training, and
exported files.

It is copied in the accelerator's thread, in the order in which it was asked for, so that training
may follow at once; and it is sent while that goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spotlight.actors.protocol.delivery import until_transferred
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.gradients import OpenUpdate
from spotlight.actors.protocol.trainer import (
    ExportedModel,
    ExportModel,
    Publish,
    SavedState,
    SaveState,
    state_key,
)
from spotlight.actors.worker.engine import Engine, Model, State, Trainer, Weights
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import SpotlightError
from spotlight.jobs import JobSpec
from spotlight.types import BundleOffer, StoreEndpoint, UpdateSlices

_LENT = "weights/lent"
"""The keys of what is lent begin with it."""
_Role = Literal["rollout", "evaluation"]
_Lent = Literal["current", "reference"]


@dataclass
class Training:
    """A trainer that is built, and how far it is."""

    job: JobSpec
    job_id: str
    rank: int
    model: Model
    trainer: Trainer
    completed: int
    """Iterations trained, with those of the state that it began from."""
    begun: bool = False
    """The first part of the next one is trained, too."""
    is_under_way: bool = False
    """Updates are being taken: the weights are those of no iteration until the last one is."""
    given_up: bool = False
    """Others are the trainer ranks now."""
    lent_reference: BundleOffer | None = None
    """Where others find the weights that the job began with, if they were left for them."""

    def require_wanted(self) -> None:
        """In the accelerator's thread, before each part of an iteration."""
        if self.given_up:
            raise SpotlightError("given up while it trained")

    def require_completed(self, iterations: int, what: str, *, begun: bool = False) -> None:
        """In the accelerator's thread, so that nothing comes between this and what it is about.
        `begun`: the first part of the next iteration is to be trained, too."""
        if self.given_up:
            raise SpotlightError(f"asked to {what} iteration {iterations}, but it was given up")
        if self.is_under_way:
            raise SpotlightError(
                f"asked to {what} iteration {iterations}, but updates of the next one are begun"
            )
        if self.completed != iterations:
            raise SpotlightError(
                f"asked to {what} iteration {iterations}, but {self.completed} are trained"
            )
        if self.begun != begun:
            parts = "the first part" if self.begun else "no part"
            raise SpotlightError(
                f"asked to {what} iteration {iterations}, but {parts} of the next one is trained"
            )


def is_lent(key: str) -> bool:
    """Whether a rank lends what it leaves there, and publishes it to nobody."""
    return key.startswith(_LENT)


class TrainerOutputs:
    """See the module's docstring. All methods raise `TransferFailed` when a store cannot be reached
    for long, and `SpotlightError` when the order does not fit what is trained.
    """

    def __init__(self, context: WorkerContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine

    async def publish(self, training: Training, message: Publish) -> WeightsOffer:
        """Put the rank's part of the weights into its node's store."""

        def copy() -> dict[_Role, Weights]:
            training.require_completed(message.version, "publish")
            copies: dict[_Role, Weights] = {"rollout": training.trainer.weights("rollout")}
            if message.evaluation:
                copies["evaluation"] = training.trainer.weights("evaluation")
            return copies

        async def put(role: _Role, weights: Weights) -> BundleOffer:
            key = f"weights/{message.version:06d}-{role}-{training.rank}"
            save = self._engine.save_weights
            return await until_transferred(
                lambda: save(message.store, key, weights),
                key,
                timings=self._context.timings.delivery,
            )

        copies = await self._context.on_accelerator(copy)
        rollout, *evaluation = await asyncio.gather(*(put(*each) for each in copies.items()))
        return WeightsOffer(message.version, (rollout,), tuple(evaluation))

    async def copy_lent(self, training: Training) -> dict[_Lent, Weights]:
        """The rank's part of what others need to compute slices of an update, unless they hold it
        anyhow, or it was left for them before."""
        roles: list[_Lent] = [] if training.trainer.trains_published else ["current"]
        if training.trainer.has_reference and training.lent_reference is None:
            roles.append("reference")

        def copy() -> dict[_Lent, Weights]:
            training.require_wanted()
            return {role: training.trainer.weights(role) for role in roles}

        return await self._context.on_accelerator(copy)

    async def lend(
        self,
        training: Training,
        update: tuple[int, UpdateSlices],
        copies: Mapping[_Lent, Weights],
        store: StoreEndpoint,
    ) -> OpenUpdate:
        """Leave these in the rank's store, for others; the update is told by its number and the
        rank's share."""
        number, share = update

        async def leave(role: _Lent, name: str) -> BundleOffer:
            key = f"{_LENT}{name}-rollout-{training.rank}"  # it is a part as those that roll out
            return await self._engine.save_weights(store, key, copies[role])

        if "reference" in copies:
            training.lent_reference = await leave("reference", "0")
        weights = await leave("current", f"{1 + number % 2}") if "current" in copies else None
        return OpenUpdate(number, share, weights, training.lent_reference)

    async def save(self, training: Training, message: SaveState) -> SavedState:
        """Leave the state of training in stores, unless the rank has trained on since."""

        def copy() -> State | None:
            has_begun = training.begun or training.is_under_way
            if training.completed + has_begun > message.iteration:
                return None  # another coordinator had it trained on
            training.require_completed(message.iteration, "save")
            return training.trainer.state()

        async def put(store: StoreEndpoint, state: State) -> BundleOffer:
            save = self._engine.save_state
            return await until_transferred(
                lambda: save(store, key, state, metadata),
                key,
                timings=self._context.timings.delivery,
            )

        key = state_key(message.iteration, message.part)
        metadata = {"job": training.job_id, "completed": str(message.iteration)}
        state = await self._context.on_accelerator(copy)
        stores = message.stores if state is not None else ()
        return SavedState(message.iteration, tuple([await put(store, state) for store in stores]))

    async def export(self, training: Training, message: ExportModel) -> ExportedModel:
        """Leave the weights of a checkpoint in a store, as files that other libraries load."""
        files = await until_transferred(
            lambda: self._engine.export(training.job.model, message.state, message.store),
            "the exported weights",
            timings=self._context.timings.delivery,
        )
        return ExportedModel(message.checkpoint, files)
