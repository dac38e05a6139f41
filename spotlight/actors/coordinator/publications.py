"""The weights versions of a job that nodes may still need, and where each node pulls them from.

Nodes say what they hold and what they could not get, again and again; whatever is lost, late or
said twice, they are sent where the plan says now.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from spotlight.actors.coordinator.job_journal import Publication
from spotlight.actors.coordinator.roster import Roster
from spotlight.actors.protocol import HoldWeights, JoinNode, WeightsCopied, WeightsMissed
from spotlight.policies.weight_distribution import (
    ORIGIN,
    Place,
    WeightDistribution,
    transfer_limit_s,
)
from spotlight.timings import WeightsTimings
from spotlight.types import BundleOffer, StoreEndpoint


class Publications:
    """By version, oldest first.

    Args:
        known: versions that nodes can pull.
        roster: the job's nodes. Whoever changes it says so with `look_at`.
    """

    def __init__(
        self, known: Mapping[int, Publication], roster: Roster, timings: WeightsTimings
    ) -> None:
        self._roster = roster
        self._timings = timings
        self._known = {v: _Version(v, where, roster, timings) for v, where in sorted(known.items())}

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
        self._known[version] = _Version(version, where, self._roster, self._timings)

    def look_at(self, name: str) -> None:
        """A node came, went, will be taken or is another process by now."""
        for known in self._known.values():
            known.look_at(name)

    def copied(self, message: WeightsCopied) -> bool:
        """A node holds a version, and others may pull it from there; False if that is not new."""
        return message.version in self._known and self._known[message.version].copied(message)

    def missed(self, message: WeightsMissed, now: float) -> None:
        """A node could not get a version where it was sent."""
        if message.version in self._known:
            self._known[message.version].missed(message, now)

    def directions(
        self, job_id: str, now: float, again: Iterable[str] = ()
    ) -> list[tuple[JoinNode, HoldWeights]]:
        """What nodes must be told: whatever is new for them, and to those in `again` everything."""
        keep, to_all_of = tuple(self._known), dict.fromkeys(again)
        return [
            (self._roster.nodes[name], message)
            for known in self._known.values()
            for name, message in known.directions(job_id, keep, now, to_all_of)
        ]


class _Version:
    """One version: where its trainer left it, which nodes hold it, and who pulls it from whom."""

    def __init__(
        self, version: int, where: Publication, roster: Roster, timings: WeightsTimings
    ) -> None:
        self._version = version
        self._where = where
        self._roster = roster
        nbytes = [offer.nbytes for offer in (where.rollout, where.evaluation) if offer is not None]
        # A node says itself what it could not get in time; this is for words that are lost.
        patience_s = sum(2 * transfer_limit_s(each, timings) for each in nbytes)
        self._spread = WeightDistribution(_place(where.rollout.store), patience_s, timings)
        self._copies: dict[str, WeightsCopied] = {}
        self._told: dict[str, HoldWeights] = {}
        """The latest, by node; nothing of those that wait."""
        self._keep: tuple[int, ...] = ()
        """What was told to be kept."""
        self._news: dict[str, None] = dict.fromkeys(roster.nodes)
        """Nodes that something is new of since the latest directions."""

    def look_at(self, name: str) -> None:
        self._news[name] = None

    def copied(self, message: WeightsCopied) -> bool:
        where = self._where
        if not _same(message.rollout, where.rollout):
            return False  # it was trained again since
        if not _same(message.evaluation, where.evaluation):
            return False
        known, self._copies[message.node] = self._copies.get(message.node), message
        if known == message:
            return False
        self._news |= dict.fromkeys((message.node, *self._spread.fed_by(message.node)))
        return True

    def missed(self, message: WeightsMissed, now: float) -> None:
        source = self._spread.source_of(message.node)
        if source is not None and self._at(source).rollout.store == message.store:
            self._spread.failed(message.node, source, now)

    def directions(
        self, job_id: str, keep: tuple[int, ...], now: float, again: dict[str, None]
    ) -> Iterator[tuple[str, HoldWeights]]:
        news, self._news = self._news, {}
        for name in news:
            self._take_in(name, now)
        news |= dict.fromkeys(self._spread.plan(now))
        if keep != self._keep:
            self._keep = keep
            news |= dict.fromkeys(self._told)
        for name in news | again:
            last = self._told.pop(name, None)
            message = self._direction(job_id, name, last)
            if message is None:
                continue
            self._told[name] = message
            if name in again or message != last:
                yield name, message

    def _direction(self, job_id: str, name: str, last: HoldWeights | None) -> HoldWeights | None:
        source = self._spread.source_of(name)
        if source is None and name not in self._copies:
            return None  # it waits, or is gone
        if source is None and last is not None:  # it holds what it was told to pull
            return msgspec.structs.replace(last, keep=self._keep)
        where = self._where if source is None else self._at(source)
        return HoldWeights(job_id, self._version, where.rollout, where.evaluation, self._keep)

    def _take_in(self, name: str, now: float) -> None:
        """Tell the plan what is so now."""
        node, copy = self._roster.nodes.get(name), self._copies.get(name)
        if copy is not None and (node is None or node.store.place != copy.rollout.store.place):
            # It is another process by now, with a store of its own.
            del self._copies[name]
            copy = None
        if node is None:
            self._spread.gone(name)
        elif copy is None:
            self._spread.needs(name, _place(node.store), now)
        else:
            is_origins = node.store.place == self._where.rollout.store.place
            feeds = name not in self._roster.leaving and not is_origins
            self._spread.holds(name, _place(node.store), feeds=feeds)

    def _at(self, source: str) -> Publication | WeightsCopied:
        return self._where if source == ORIGIN else self._copies[source]


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
