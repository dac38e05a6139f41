"""The node's copies of weights versions: each is fetched once for all its workers."""

from __future__ import annotations

import asyncio

import msgspec

from spotlight.actors.protocol import HoldWeights
from spotlight.policies.weight_distribution import transfer_limit_s
from spotlight.timings import WeightsTimings
from spotlight.transport.tensors import BundleStore, content_key
from spotlight.types import BundleOffer

_Offers = tuple[BundleOffer, BundleOffer | None]


class WeightsCopies:
    """The versions of one job at a time, in the node's store. A copy's key names its bytes, so that
    workers map its file without a checksum, and other nodes pull it.
    """

    def __init__(self, store: BundleStore, timings: WeightsTimings) -> None:
        self._timings = timings
        self._store = store
        self._job_id = ""
        self._wanted: frozenset[int] = frozenset()
        self._copies: dict[tuple[int, str], BundleOffer] = {}
        """By version and role."""
        self._transfers: dict[int, tuple[_Offers, asyncio.Task[object]]] = {}
        """What is fetched now, by version, and the task that does."""

    def begin(self, job_id: str) -> None:
        """Drop what belongs to another job."""
        if self._job_id:  # else the trainer may have published before the node heard of the job
            self._store.delete("weights")
        self._job_id = job_id
        self._copies.clear()
        self._want(frozenset())

    async def hold(self, message: HoldWeights) -> HoldWeights | None:
        """Fetch a version, unless it is there, and drop those that are not kept any more.

        To be awaited in a task of its own: when the same version is to be had elsewhere, or is not
        wanted any more, the task is cancelled.

        Returns what to tell the workers; None while the version is being fetched from there.
        Raises `TransferFailed` if it cannot be had.
        """
        self._want(frozenset((message.version, *message.keep)))
        offers = (message.rollout, message.evaluation)
        under_way, task = self._transfers.get(message.version, (None, None))
        if under_way == offers:
            return None
        if task is not None:
            task.cancel()
        own = asyncio.current_task()
        assert own is not None
        self._transfers[message.version] = (offers, own)
        try:
            rollout = await self._copy(message.version, "rollout", message.rollout)
            evaluation = message.evaluation and await self._copy(
                message.version, "evaluation", message.evaluation
            )
        finally:
            if self._transfers.get(message.version) == (offers, own):
                del self._transfers[message.version]
        return msgspec.structs.replace(
            message, rollout=rollout, evaluation=evaluation, keep=tuple(sorted(self._wanted))
        )

    def _want(self, versions: frozenset[int]) -> None:
        self._wanted = versions
        for version in [version for version in self._transfers if version not in versions]:
            self._transfers.pop(version)[1].cancel()
        for key in [key for key in self._copies if key[0] not in versions]:
            copy = self._copies.pop(key)
            self._store.delete(copy.key)
            self._store.delete(_original(copy.key))

    async def _copy(self, version: int, role: str, offer: BundleOffer) -> BundleOffer:
        held = self._copies.get((version, role))
        if held is not None and (held.nbytes, held.checksum) == (offer.nbytes, offer.checksum):
            return held
        copy = await self._store.copy(
            offer,
            content_key(_original(offer.key), offer.checksum),
            limit_s=transfer_limit_s(offer.nbytes, self._timings),
        )
        if held is not None:  # before the version was trained again
            self._store.delete(held.key)
        self._copies[version, role] = copy
        return copy


def _original(key: str) -> str:
    """The key under which the trainer published a bundle: into this store, if it is its node's."""
    return key.partition(".")[0]
