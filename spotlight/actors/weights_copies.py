"""The node's copies of weights versions: each is fetched once for all its workers."""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from spotlight.actors.messages import HoldWeights
from spotlight.errors import TransferFailed
from spotlight.transport.tensors import BundleOffer, BundleStore, fetch

log = structlog.get_logger(__name__)

_PAUSES_S = (1.0, 2.0, 4.0, 8.0)


class WeightsCopies:
    """The versions of one job at a time, in the node's store."""

    def __init__(self, store: BundleStore) -> None:
        self._store = store
        self._job_id = ""
        self._wanted: frozenset[int] = frozenset()
        self._copies: dict[tuple[int, str], tuple[BundleOffer, BundleOffer]] = {}
        """By version and role: what was offered, and the copy."""

    def begin(self, job_id: str) -> None:
        """Drop what belongs to another job."""
        if self._job_id:  # else the trainer may have published before the node heard of the job
            self._store.delete("weights")
        self._job_id = job_id
        self._wanted = frozenset()
        self._copies.clear()

    async def hold(self, message: HoldWeights) -> HoldWeights | None:
        """Fetch a version, unless it is there, and drop those that are not kept any more.

        Returns what to tell the workers; None if the version cannot be had, or is not wanted any
        more.
        """
        self._wanted = frozenset((message.version, *message.keep))
        for key in [key for key in self._copies if key[0] not in self._wanted]:
            self._store.delete(self._copies.pop(key)[1].key)
        for pause_s in (*_PAUSES_S, None):
            try:
                rollout = await self._copy(message, "rollout", message.rollout)
                evaluation = message.evaluation and await self._copy(
                    message, "evaluation", message.evaluation
                )
                break
            except TransferFailed as error:
                if not self._wants(message):
                    return None
                if pause_s is None:
                    # Its workers are granted nothing of this version; the next one may arrive.
                    log.error("weights_not_fetched", version=message.version, reason=str(error))
                    return None
                log.warning("weights_fetched_again", version=message.version, reason=str(error))
                await asyncio.sleep(pause_s)
        if not self._wants(message):
            return None
        return msgspec.structs.replace(
            message, rollout=rollout, evaluation=evaluation, keep=tuple(sorted(self._wanted))
        )

    async def _copy(self, message: HoldWeights, role: str, offer: BundleOffer) -> BundleOffer:
        key = (message.version, role)
        if key in self._copies:
            offered, copy = self._copies[key]
            if (offered.nbytes, offered.checksum) == (offer.nbytes, offer.checksum):
                return copy
        if offer.store == self._store.endpoint:
            self._copies[key] = (offer, offer)
            return offer
        data = await fetch(offer)
        if not self._wants(message):  # by now; its place may be another job's
            raise TransferFailed(f"{offer.key} is not wanted any more")
        copy = self._store.put(offer.key, data)
        self._copies[key] = (offer, copy)
        return copy

    def _wants(self, message: HoldWeights) -> bool:
        return self._job_id == message.job_id and message.version in self._wanted
