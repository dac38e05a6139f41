"""The node's copies of weights versions: each is fetched once for all its workers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.gradients import GRADIENTS
from spotlight.actors.protocol.up import MissedWeights
from spotlight.actors.runtime import garbage
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.errors import TransferFailed
from spotlight.policies.fleet.weight_distribution import transfer_limit_s
from spotlight.timings import WeightsTimings
from spotlight.transport.tensors import BundleStore, content_key
from spotlight.types import BundleOffer

if TYPE_CHECKING:
    from spotlight.actors.node.node import NodeScheduler

log = structlog.get_logger(__name__)


class WeightsCopies:
    """The versions of one job at a time, in the node's store. A copy's key names its bytes, so that
    workers map its file without a checksum, and other nodes pull it.

    Args:
        node: whose tasks fetch, and which hears when a version has come, or could not be had.
        published: copies of versions from which these differ little; None for these alone.
    """

    def __init__(
        self,
        node: NodeScheduler,
        store: BundleStore,
        timings: WeightsTimings,
        published: WeightsCopies | None = None,
    ) -> None:
        self._node = node
        self._published = published
        self._log = LimitedLog(log)
        self._timings = timings
        self._store = store
        self._job_id = ""
        self._offers: dict[int, WeightsOffer] = {}
        """Those of the latest plan."""
        self._copies: dict[int, dict[str, BundleOffer]] = {}
        """The copies by version, and by what the trainers called the bundle."""
        self._broken: dict[int, set[str]] = {}
        """What could not be copied, by version; the next attempt takes it whole."""
        self._missed: dict[int, MissedWeights] = {}
        self._transfers: dict[int, tuple[WeightsOffer, asyncio.Task[None]]] = {}
        """What is fetched now, by version, and the task that does."""

    @property
    def held(self) -> tuple[WeightsOffer, ...]:
        """The copies of what the plan says to have, by version; whole versions only."""
        copies = (self._copy_of(self._offers[version]) for version in sorted(self._offers))
        return tuple(copy for copy in copies if copy is not None)

    @property
    def missed(self) -> tuple[MissedWeights, ...]:
        """What could not be had from where the plan says; it is tried again with the next plan."""
        return tuple(self._missed[version] for version in sorted(self._missed))

    def begin(self, job_id: str) -> None:
        """Drop what belongs to another job; empty for none."""
        if job_id == self._job_id:
            return
        if self._job_id:  # else the trainer may have published before the node heard of the job
            for of_the_job in ("weights", "state", GRADIENTS):
                self._store.delete(of_the_job)
        self._job_id = job_id
        self._copies.clear()
        self._broken.clear()
        self.follow((), ())

    def follow(self, offers: Sequence[WeightsOffer], versions: Sequence[int]) -> None:
        """Fetch what is offered and not there yet, and drop all but these versions; nothing while
        there are none: a job runner that has just come may ask for what is here.
        """
        self._offers = {offer.version: offer for offer in offers}
        self._missed.clear()
        for version, (offer, task) in list(self._transfers.items()):
            if self._offers.get(version) != offer:  # it is to be had elsewhere, or not wanted
                task.cancel()
                del self._transfers[version]
        for version in [each for each in self._copies if versions and each not in versions]:
            self._broken.pop(version, None)
            for copy in self._copies.pop(version).values():
                self._drop(copy)
        for version, offer in self._offers.items():
            if version not in self._transfers and self._copy_of(offer) is None:
                task = self._node.run_task(self._fetch(offer))
                self._transfers[version] = (offer, task)

    async def _fetch(self, offer: WeightsOffer) -> None:
        version = offer.version
        try:
            copying = [self._copy(version, part) for part in offer.parts]
            for error in await asyncio.gather(*copying, return_exceptions=True):
                if isinstance(error, BaseException):
                    raise error  # when all have ended: none works on beside the next attempt
        except TransferFailed as error:
            # Until it can be had elsewhere, the workers are granted nothing of this version.
            reason = str(error)
            self._log.warning(
                "weights_not_fetched", about=(version, reason), version=version, reason=reason
            )
            self._missed[version] = MissedWeights(version, offer.store)
        del self._transfers[version]
        self._node.files_changed()
        garbage.collect()  # workers load these weights now, and want nothing of the node

    async def _copy(self, version: int, offer: BundleOffer) -> None:
        copies, original = self._copies.setdefault(version, {}), _original(offer.key)
        held = copies.get(original)
        if held is not None and _same(held, offer):
            return
        try:
            copy = await self._store.copy(
                offer,
                content_key(original, offer.checksum),
                limit_s=transfer_limit_s(offer.nbytes, self._timings),
                base=self._base_of(version, original),
            )
        except TransferFailed:
            self._broken.setdefault(version, set()).add(original)
            raise
        if held is not None:  # before the version was trained again
            self._store.delete(held.key)
        copies[original] = copy

    def _base_of(self, version: int, original: str) -> BundleOffer | None:
        """The same part of the newest version before, as far as it is here."""
        if original in self._broken.get(version, ()):
            return None
        if self._published is not None:
            return self._published.newest(_part(original))
        return self.newest(_part(original), before=version)

    def newest(self, part: str, before: float = math.inf) -> BundleOffer | None:
        """The copy of a part of the newest version that has one."""
        for version in sorted((v for v in self._copies if v < before), reverse=True):
            for key, copy in self._copies[version].items():
                if _part(key) == part:
                    return copy
        return None

    def _copy_of(self, offer: WeightsOffer) -> WeightsOffer | None:
        """If all of it is here."""
        copies = self._copies.get(offer.version, {})

        def here(parts: Sequence[BundleOffer]) -> tuple[BundleOffer, ...]:
            found = ((part, copies.get(_original(part.key))) for part in parts)
            return tuple(copy for part, copy in found if copy is not None and _same(copy, part))

        rollout, evaluation = here(offer.rollout), here(offer.evaluation)
        if len(rollout) + len(evaluation) < len(offer.parts):
            return None
        return WeightsOffer(offer.version, rollout, evaluation)

    def _drop(self, copy: BundleOffer) -> None:
        self._store.delete(copy.key)
        if self._published is None:  # else a rank may have lent another update by that key since
            self._store.delete(_original(copy.key))


def _same(copy: BundleOffer, offer: BundleOffer) -> bool:
    return (copy.nbytes, copy.checksum) == (offer.nbytes, offer.checksum)


def _part(original: str) -> str:
    """The role and the trainer rank in the key of a bundle, which are the same in all versions."""
    return original.partition("-")[2]


def _original(key: str) -> str:
    """The key under which the trainer published a bundle: into this store, if it is its node's."""
    return key.partition(".")[0]
