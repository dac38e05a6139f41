"""The weights versions of a job that nodes may still need, and where each node pulls them from.

Nodes say what they hold and what they could not get, again and again; whatever is lost, late or
said twice, they are sent where the plan says now.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from functools import lru_cache

import msgspec

from spotlight.actors.coordinator.job_journal import Publication
from spotlight.actors.coordinator.roster import Roster
from spotlight.actors.protocol import HoldWeights, JoinNode, WeightsCopied, WeightsMissed
from spotlight.policies.weight_distribution import ORIGIN, Place, Spread, transfer_limit_s
from spotlight.types import BundleOffer, StoreEndpoint


class Publications:
    """By version, oldest first."""

    def __init__(self, known: Mapping[int, Publication]) -> None:
        self._known = {version: _Version(where) for version, where in sorted(known.items())}
        self._told: dict[tuple[str, int], HoldWeights] = {}
        """The latest, by node and version."""

    def __contains__(self, version: int) -> bool:
        return version in self._known

    @property
    def versions(self) -> frozenset[int]:
        """Those that nodes can pull."""
        return frozenset(self._known)

    @property
    def newest(self) -> int:
        """0 before the first."""
        return max(self._known, default=0)

    def add(self, version: int, where: Publication, keep: Collection[int]) -> None:
        """A new version is there; of the others only those in `keep` are still needed."""
        self._known = {v: kept for v, kept in self._known.items() if v in keep}
        self._known[version] = _Version(where)

    def copied(self, message: WeightsCopied) -> bool:
        """A node holds a version, and others may pull it from there; False if that is not new."""
        return message.version in self._known and self._known[message.version].copied(message)

    def missed(self, message: WeightsMissed, now: float) -> None:
        """A node could not get a version where it was sent."""
        if message.version in self._known:
            self._known[message.version].missed(message, now)

    def directions(
        self, job_id: str, roster: Roster, now: float, again: Collection[str] = ()
    ) -> list[tuple[JoinNode, HoldWeights]]:
        """What nodes must be told: whatever is new for them, and to those in `again` everything."""
        keep = tuple(self._known)
        told, due = {}, []
        for version, known in self._known.items():
            for name, where in known.sources(roster, now).items():
                last = self._told.get((name, version))
                if where is None and last is not None:  # it holds what it was told to pull
                    message = msgspec.structs.replace(last, keep=keep)
                else:
                    where = where or known.where
                    message = HoldWeights(job_id, version, where.rollout, where.evaluation, keep)
                told[name, version] = message
                if name in again or message != last:
                    due.append((roster.nodes[name], message))
        self._told = told
        return due


class _Version:
    """One version: where its trainer left it, which nodes hold it, and who pulls it from whom."""

    def __init__(self, where: Publication) -> None:
        self.where = where
        nbytes = [offer.nbytes for offer in (where.rollout, where.evaluation) if offer is not None]
        # A node says itself what it could not get in time; this is for words that are lost.
        patience_s = sum(2 * transfer_limit_s(each) for each in nbytes)
        self._spread = Spread(_place(where.rollout.store), patience_s)
        self._copies: dict[str, WeightsCopied] = {}
        self._stores: dict[str, StoreEndpoint] = {}
        """Of the sources of the latest plan."""

    def copied(self, message: WeightsCopied) -> bool:
        where = self.where
        if not _same(message.rollout, where.rollout):
            return False  # it was trained again since
        if not _same(message.evaluation, where.evaluation):
            return False
        known, self._copies[message.node] = self._copies.get(message.node), message
        return known != message

    def missed(self, message: WeightsMissed, now: float) -> None:
        for source, store in self._stores.items():
            if store == message.store:
                self._spread.failed(message.node, source, now)

    def sources(self, roster: Roster, now: float) -> dict[str, Publication | None]:
        """By node: where it pulls from; None if it holds the version. Others wait."""
        nodes = roster.nodes
        self._copies = {
            name: copy
            for name, copy in self._copies.items()
            # Else it is another process by now, with a store of its own.
            if name in nodes and nodes[name].store.place == copy.rollout.store.place
        }
        origin = self.where.rollout.store
        feeders = {
            name: copy
            for name, copy in self._copies.items()
            if name not in roster.leaving and nodes[name].store.place != origin.place
        }
        places = {name: _place(node.store) for name, node in nodes.items()}
        plan = self._spread.plan(places, self._copies.keys(), feeders.keys(), now)
        self._stores = {name: copy.rollout.store for name, copy in feeders.items()}
        self._stores[ORIGIN] = origin
        where = {name: Publication(copy.rollout, copy.evaluation) for name, copy in feeders.items()}
        where[ORIGIN] = self.where
        pulling = {name: where[source] for name, source in plan.items()}
        return {**dict.fromkeys(self._copies), **pulling}


def _same(copy: BundleOffer | None, offer: BundleOffer | None) -> bool:
    if copy is None or offer is None:
        return copy is offer
    return (copy.nbytes, copy.checksum) == (offer.nbytes, offer.checksum)


@lru_cache(maxsize=4096)
def _place(store: StoreEndpoint) -> Place:
    return Place(store.machine, _neighbourhood(store.host))


def _neighbourhood(host: str) -> str:
    """The subnet of an address, the domain of a name; empty for what says nothing."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.partition(".")[2]
    if address.is_loopback or address.is_unspecified:
        return ""
    prefix = 24 if address.version == 4 else 64
    return str(ipaddress.ip_network((address, prefix), strict=False))
