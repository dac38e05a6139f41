"""How a member computes the gradient of a slice of an update: with the weights that are trained and
those that roll out, on the samples of the slice.

It is done for whichever rank the slice is of; what is left half-way is of no use to anybody. The
gradient stays in the store of the member's node, where the rank fetches it.
"""

from __future__ import annotations

import asyncio
from functools import partial

from spotlight.actors.protocol.gradients import GRADIENTS, Bring, Brought, SliceOrder
from spotlight.actors.protocol.up import Completed, ReturnLease
from spotlight.actors.runtime import Actor
from spotlight.actors.worker.batches import Batch, Batches, returned
from spotlight.actors.worker.engine import Engine, WeightsRole
from spotlight.actors.worker.held_weights import HeldWeights
from spotlight.actors.worker.shared_model import HeldVersion, SharedModel
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import SpotlightError, TransferFailed
from spotlight.policies.fleet.weight_distribution import transfer_limit_s
from spotlight.types import BundleOffer, StoreEndpoint

_KEPT = 4
"""How many gradients of a worker stay in the store of its node."""


class LentWeights:
    """What ranks have lent, as it was fetched last: the weights of an update serve all its slices,
    those that the job began with all updates. Each is fetched once for all workers of a node."""

    def __init__(self, actor: Actor, context: WorkerContext, engine: Engine) -> None:
        self._actor = actor
        self._context = context
        self._engine = engine
        self._held: dict[WeightsRole, HeldVersion] = {}

    async def have(self, role: WeightsRole, offer: BundleOffer) -> HeldVersion:
        """Raises `TransferFailed`, and `ActorError` if the node does not answer."""
        held = self._held.get(role)
        if held is None or held.checksum != offer.checksum:
            weights = await self._engine.fetch_weights((await self._brought(offer),))
            held = self._held[role] = HeldVersion(offer.checksum, weights)
        return held

    def forget_all(self) -> None:
        """The job has ended."""
        self._held.clear()

    async def _brought(self, offer: BundleOffer) -> BundleOffer:
        """The node's copy of it."""
        actor, timings = self._actor, self._context.timings
        node = actor.system.well_known(self._context.node, "node")
        limit_s = transfer_limit_s(offer.nbytes, timings.weights) + timings.delivery.answer_limit_s
        answer = await actor.ask(node, Bring(offer), timeout_s=limit_s)
        assert isinstance(answer, Brought)
        if answer.copy is None:
            raise TransferFailed(answer.problem)
        return answer.copy


class SliceWork:
    """See the module's docstring.

    Args:
        actor: the member, which asks its node on behalf of this.
    """

    def __init__(
        self,
        actor: Actor,
        context: WorkerContext,
        engine: Engine,
        batches: Batches,
        weights: HeldWeights,
        shared: SharedModel,
    ) -> None:
        self._context = context
        self._engine = engine
        self._batches = batches
        self._weights = weights
        self._shared = shared
        self._left = 0
        """How many gradients were left in the store."""
        self.lent = LentWeights(actor, context, engine)

    async def carry_out(
        self, batch: Batch, order: SliceOrder, store: StoreEndpoint | None
    ) -> Completed | ReturnLease:
        """Compute the gradient, and leave it in the `store` of the node; or give it back when the
        node must leave. Raises `Unwanted` when nobody wants it any more, and other errors of ours,
        `ValueError` or `RuntimeError` when it fails.
        """
        batches, context = self._batches, self._context
        batches.require_wanted(batch)
        job = batch.job
        if job is None or store is None:
            raise SpotlightError("no job is prepared on this member")
        uses, bundles = await self._fetch(batch, order)

        def use(role: WeightsRole) -> None:
            self._shared.install(job.model, uses[role])

        def goes_on() -> bool:
            return batches.wants(batch) and not batch.recalled and batches.stop_at is None

        async with context.accelerator_turn():
            batches.require_wanted(batch)
            batch.begun = True
            with context.busy("train", f"a slice of iteration {order.share.iteration}"):
                began = context.seconds()
                gradient = await context.in_turn(
                    partial(job.model.slice_gradient, order, bundles, use, goes_on)
                )
                seconds = context.seconds() - began
        batches.require_wanted(batch)
        if gradient is None:
            return returned(context.name, context.epoch, batch)
        key = f"{GRADIENTS}/{context.name}/{self._left % _KEPT}"
        self._left += 1
        offer = await self._engine.upload(store, key, gradient)
        return Completed(
            context.name,
            context.epoch,
            batch.message.lease,
            tuple(request.id for request in batch.message.requests),
            offer,
            ((),),
            0,
            seconds,
        )

    async def _fetch(
        self, batch: Batch, order: SliceOrder
    ) -> tuple[dict[WeightsRole, HeldVersion], dict[str, bytes]]:
        """All weights that it needs, and the bundles of its samples by key."""
        uses: dict[WeightsRole, HeldVersion] = {"old": self._weights.of(batch.version)}
        uses["current"] = await self.lent.have("current", order.weights)
        if order.reference is not None:
            uses["reference"] = await self.lent.have("reference", order.reference)
        offers = {sample.bundle.key: sample.bundle for sample in order.samples}
        bundles = await asyncio.gather(*map(self._engine.fetch, offers.values()))
        return uses, dict(zip(offers, bundles, strict=True))
