"""The nodes that keep the samples and commits of a tenant, so that they do not go through the
coordinator's store: those on which its trainers are, which fetch the samples anyway.

Every node leaves its bundles with one of them; the coordinator keeps the offers. What such a node
keeps is lost with it, and with it a trainer. So no loss has to be looked for here: another runner
goes on with the job then, finds that these bundles are nowhere, and has their requests done again.

A node on the coordinator's own machine keeps none: nothing would be saved, and the run folder's
store outlives it.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.protocol.down import MOST_DROPPED, DropBundles, Keeper, Keeping
from spotlight.actors.protocol.up import NodeReport
from spotlight.transport.tensors.shares import Share
from spotlight.types import BundleOffer

if TYPE_CHECKING:
    from spotlight.actors.coordinator.tenant.tenant import Tenant

_TOKENS_PER_TERM = 2**20
_OLD = 2
"""Releases after which nothing is needed any more that was made before: those of an iteration come
when the next one is under way, and its previews began in the one before."""


class Keepers:
    """See the module's docstring. Nobody keeps anything until `appoint`."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._nodes: frozenset[str] = frozenset()
        self._shares: dict[str, Share] = {}
        """What those that keep something share of their stores, in the order of their names."""
        self._issued = Counter[str]()
        """How often each node got another token."""
        self._revoked: dict[str, int] = {}
        """Nodes that were shown out, each with the number from which on its tokens are good."""
        self._leases = deque[int](maxlen=_OLD + 1)
        """The next lease at the latest releases."""
        self._unused: defaultdict[str, list[str]] = defaultdict(list)
        """The bundles to be dropped in this turn of the loop, by who keeps them."""

    # --- who keeps bundles ---

    def appoint(self, nodes: frozenset[str]) -> None:
        """The trainers are on these nodes."""
        self._nodes = nodes
        self._look()

    def note(self, report: NodeReport) -> None:
        """What a node shares may be new."""
        if report.node in self._nodes:
            self._look()

    def _look(self) -> None:
        """Begin when all share something, so that others hear of it once; whoever is away may come
        back with what it keeps."""
        shares: dict[str, Share] = {}
        here = self._tenant.store.endpoint.machine
        for name in sorted(self._nodes):
            report = self._tenant.roster.nodes.get(name)
            if report is None:
                shares |= {name: self._shares[name]} if name in self._shares else {}
            elif report.store.machine != here:
                if report.share is None or report.job_id != self._tenant.service.id:
                    return
                shares[name] = Share(report.share)
        if shares != self._shares:
            self._shares = shares
            self._tenant.briefing.keepers_changed()

    def of(self, node: str) -> Keeper | None:
        """With whom a node leaves its bundles: itself, if it keeps any."""
        if not self._shares:
            return None
        names = list(self._shares)
        name = node if node in self._shares else names[zlib.crc32(node.encode()) % len(names)]
        return Keeper(name, self._shares[name].writable_by(node, self._number_of(node)))

    def has(self, bundle: BundleOffer) -> bool:
        """Whether a node that keeps bundles has this one, as far as can be known here."""
        share = self._shares.get(bundle.keeper)
        return share is not None and share.readable(bundle.key) == bundle.store

    # --- what they are told ---

    def keeping(self, node: str) -> Keeping | None:
        """What a node is to know of what it keeps."""
        if node not in self._shares:
            return None
        leases_from = self._leases[0] if len(self._leases) > _OLD else 0
        return Keeping(leases_from, dict(self._revoked))

    def released(self) -> None:
        """Samples of earlier iterations are used up."""
        self._leases.append(self._tenant.table.next_lease)
        self._tenant.briefing.keeping_changed(self._shares)

    def another_process(self, node: str) -> None:
        """The tokens that a node had are good no longer than until it uses the next one."""
        self._issued[node] += 1

    def shut_out(self, node: str) -> None:
        """A node was shown out: its tokens are good for nothing."""
        self._issued[node] += 1
        self._revoked[node] = self._number_of(node)
        self._tenant.briefing.keeping_changed(self._shares)

    def _number_of(self, node: str) -> int:
        return self._tenant.journal.term * _TOKENS_PER_TERM + self._issued[node]

    # --- what goes ---

    def discard(self, bundle: BundleOffer) -> None:
        """Nobody needs it: its keeper is told when this turn ends, and is not told again."""
        if not self._unused:
            self._tenant.call_in_turn(self._drop_unused)
        self._unused[bundle.keeper].append(bundle.key)

    async def _drop_unused(self) -> None:
        for name, keys in self._unused.items():
            if (report := self._tenant.roster.nodes.get(name)) is None:
                continue  # what it kept is lost with it
            for begin in range(0, len(keys), MOST_DROPPED):
                drop = DropBundles(tuple(keys[begin : begin + MOST_DROPPED]))
                try_tell(self._tenant, report.scheduler, drop)
        self._unused.clear()
