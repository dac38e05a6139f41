"""Samples and commits of a job that the workers of all nodes leave in the store of this one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spotlight.actors.protocol.artifacts import KEPT, lease_of
from spotlight.actors.protocol.down import Keeping
from spotlight.transport.tensors import BundleStore
from spotlight.types import StoreEndpoint

if TYPE_CHECKING:
    from spotlight.actors.node.node import NodeScheduler


class KeptBundles:
    """See the module's docstring. The coordinator says who may leave and read them, with what it is
    told of the node's `share`, and when they go.

    Args:
        node: whose tasks look for what is not needed.
    """

    def __init__(self, node: NodeScheduler, store: BundleStore) -> None:
        self._node = node
        self._store = store
        self._leases_from = 0
        self.share: StoreEndpoint | None = None
        """Its token lets the coordinator say who may leave and read them; None without a job."""

    def begin(self) -> None:
        """Keep those of a job, and nothing of another."""
        self.share = self._store.share(*KEPT)
        self._leases_from = 0

    def end(self) -> None:
        """Keep nothing."""
        if self.share is not None:
            self.share = None
            self._store.share()

    def follow(self, keeping: Keeping | None) -> None:
        """What the latest plan says of them."""
        if keeping is None or self.share is None:
            return
        self._store.revoke_shared(keeping.revoked)
        if keeping.leases_from > self._leases_from:
            self._leases_from = keeping.leases_from
            self._node.run_task(self._drop_before(keeping.leases_from))

    def drop(self, keys: Iterable[str]) -> None:
        """Nobody needs these."""
        if self.share is not None:
            for key in keys:
                if key.partition("/")[0] in KEPT:
                    self._store.delete(key)

    async def _drop_before(self, lease: int) -> None:
        """Whoever should have dropped these may have been lost in between."""
        keys = await self._store.keys(*KEPT)
        self.drop(key for key in keys if lease_of(key) < lease)
