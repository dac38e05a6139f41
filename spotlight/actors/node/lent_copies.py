"""The node's copies of weights that trainer ranks have lent: each is fetched once for all its
workers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spotlight.actors.protocol.gradients import Brought
from spotlight.errors import TransferFailed
from spotlight.policies.fleet.weight_distribution import transfer_limit_s
from spotlight.timings import WeightsTimings
from spotlight.transport.tensors import BundleStore, content_key
from spotlight.types import BundleOffer

if TYPE_CHECKING:
    from spotlight.actors.node.node import NodeScheduler

_KEPT = 4
"""Copies: those of the updates that are taken now, and of the weights that a job began with."""


class LentCopies:
    """The latest copies, in the node's store."""

    def __init__(self, node: NodeScheduler, store: BundleStore, timings: WeightsTimings) -> None:
        self._node = node
        self._store = store
        self._timings = timings
        self._copies: dict[str, asyncio.Task[Brought]] = {}
        """The copies by their keys; the one that was asked for last stands at the end."""

    def bring(self, bundle: BundleOffer) -> asyncio.Future[Brought]:
        """Where the workers of this node find it, once it is there; or why it cannot be had."""
        key = content_key(bundle.key, bundle.checksum)
        task = self._copies.pop(key, None)
        if task is None or (task.done() and task.result().copy is None):
            task = self._node.run_task(self._copy(bundle, key))
        self._copies[key] = task
        while len(self._copies) > _KEPT:
            self._drop(next(iter(self._copies)))
        return asyncio.shield(task)

    def forget_all(self) -> None:
        """The job is over."""
        for key in list(self._copies):
            self._drop(key)

    async def _copy(self, bundle: BundleOffer, key: str) -> Brought:
        limit_s = transfer_limit_s(bundle.nbytes, self._timings)
        try:
            return Brought(await self._store.copy(bundle, key, limit_s=limit_s))
        except TransferFailed as error:
            return Brought(None, str(error))

    def _drop(self, key: str) -> None:
        self._copies.pop(key).cancel()
        self._store.delete(key)
