"""How a member computes the gradient of a slice of an update: with the weights that are trained and
those that roll out, on the samples of the slice.

It is done for whichever rank the slice is of; what is left half-way is of no use to anybody. The
gradient stays in the store of the member's node, where the rank fetches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from spotlight.actors.protocol.down import JobPlan
from spotlight.actors.protocol.gradients import GRADIENTS, SliceOrder
from spotlight.actors.protocol.up import Completed, ReturnLease
from spotlight.actors.worker.batches import Batch, Batches, returned
from spotlight.actors.worker.engine import Engine, WeightsRole
from spotlight.actors.worker.held_weights import HeldWeights, checksum_of
from spotlight.actors.worker.shared_model import HeldVersion, SharedModel
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import SpotlightError, TransferFailed
from spotlight.policies.fleet.weight_distribution import transfer_limit_s
from spotlight.policies.spot_time import KEPT_GRADIENTS
from spotlight.timings import WeightsTimings
from spotlight.types import BundleOffer, StoreEndpoint


class LentWeights:
    """What ranks have lent, as it was fetched last: the weights of an update serve all its slices,
    those that the job began with all updates. The node has them once for all its workers."""

    def __init__(self, engine: Engine, timings: WeightsTimings) -> None:
        self._engine = engine
        self._timings = timings
        self._held: dict[WeightsRole, HeldVersion] = {}
        self._here: dict[int, tuple[BundleOffer, ...]] = {}
        """The node's copies, by checksum."""
        self._news = asyncio.Event()
        """Copies have come since somebody looked."""

    def follow(self, job: JobPlan | None) -> None:
        """What the node has, by its latest plan."""
        copies = job.lent if job is not None else ()
        self._here = {checksum_of(copy.rollout): copy.rollout for copy in copies}
        self._news.set()

    async def have(self, role: WeightsRole, parts: Sequence[BundleOffer]) -> HeldVersion:
        """Weights that the ranks left in these parts. Raises `TransferFailed`."""
        held, checksum = self._held.get(role), checksum_of(parts)
        if held is None or held.checksum != checksum:
            copies = await self._copies_of(checksum, parts)
            weights = await self._engine.fetch_weights(copies)
            held = self._held[role] = HeldVersion(checksum, weights)
        return held

    def forget_all(self) -> None:
        """The job has ended."""
        self._held.clear()

    async def _copies_of(
        self, checksum: int, parts: Sequence[BundleOffer]
    ) -> tuple[BundleOffer, ...]:
        """Those of the node, once they are there."""
        limit_s = sum(2 * transfer_limit_s(part.nbytes, self._timings) for part in parts)
        try:
            async with asyncio.timeout(limit_s):
                while checksum not in self._here:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError as error:
            raise TransferFailed(
                f"the node had no copy of {parts[0].key} after {limit_s:g} s, which ranks have lent"
            ) from error
        return self._here[checksum]


class SliceWork:
    """See the module's docstring."""

    def __init__(
        self,
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
        self.lent = LentWeights(engine, context.timings.weights)

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
        key = f"{GRADIENTS}/{context.name}/{self._left % KEPT_GRADIENTS}"
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
        rolling_out = self._weights.of(batch.version)
        uses: dict[WeightsRole, HeldVersion] = {"old": rolling_out, "current": rolling_out}
        if order.weights:
            uses["current"] = await self.lent.have("current", order.weights)
        if order.reference:
            uses["reference"] = await self.lent.have("reference", order.reference)
        offers = {sample.bundle.key: sample.bundle for sample in order.samples}
        bundles = await asyncio.gather(*map(self._engine.fetch, offers.values()))
        return uses, dict(zip(offers, bundles, strict=True))
