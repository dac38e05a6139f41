"""The weights versions of a job that nodes may still need, and where each node pulls them from;
and likewise the weights that trainer ranks lend.

Nodes repeatedly report what they hold and what they could not get. Even if a message is lost, late
or duplicated, the current plan says where a node pulls from.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from spotlight.actors.coordinator.fleet import Roster
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.up import MissedWeights, NodeReport
from spotlight.policies.fleet.weight_distribution import (
    ORIGIN,
    Place,
    WeightDistribution,
    transfer_limit_s,
)
from spotlight.timings import WeightsTimings
from spotlight.types import StoreEndpoint


class Publications:
    """By version, oldest first.

    Args:
        known: versions that nodes can pull.
        roster: the job's nodes. Whoever changes it says so with `node_changed`.
    """

    def __init__(
        self,
        known: Mapping[int, WeightsOffer],
        roster: Roster,
        timings: WeightsTimings,
    ) -> None:
        self._roster = roster
        self._timings = timings
        self._takers: frozenset[str] | None = None
        """The nodes that pull; None for all."""
        self._failures: Counter[str] = Counter()
        """How often nodes could not pull weights from another one, by its name, since one could."""
        self._known = {v: self._version(offer) for v, offer in sorted(known.items())}

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

    @property
    def newest_nbytes(self) -> int:
        """Bytes of the weights of the newest version that roll out; 0 before the first."""
        newest = self._known.get(self.newest)
        return sum(part.nbytes for part in newest.where.rollout) if newest is not None else 0

    def add(self, offer: WeightsOffer, keep: Collection[int]) -> None:
        """A new version is there; of the others only those in `keep` are still needed."""
        self._known = {v: kept for v, kept in self._known.items() if v in keep}
        self._known[offer.version] = self._version(offer)

    def add_new(self, offer: WeightsOffer, keep: Collection[int]) -> None:
        """The same, unless it was there before."""
        known = self._known.get(offer.version)
        if known is None or known.where != offer:
            self.add(offer, keep)

    @property
    def held(self) -> frozenset[int]:
        """Those that a node says it holds that is there, so that others can have them whatever
        happened to the trainers: the store that these left them in may have dropped them."""
        return frozenset(version for version, known in self._known.items() if known.is_held)

    def is_lost(self, version: int) -> bool:
        """Whether no node holds a version, and one has missed it where its trainers left it."""
        known = self._known.get(version)
        return known is not None and known.is_missed_at_origin and not known.is_held

    def is_validated(self, version: int) -> bool:
        """Whether a version has weights for evaluations, too."""
        return bool(self._known[version].where.evaluation)

    def keep(self, versions: Collection[int]) -> None:
        """Nobody needs the others: they are trained again."""
        self._known = {v: known for v, known in self._known.items() if v in versions}

    def only_for(self, nodes: frozenset[str]) -> None:
        """These nodes pull from now on, and no others."""
        before, self._takers = self._takers, nodes
        for name in nodes ^ (self._roster.nodes.keys() if before is None else before):
            self.node_changed(name)

    def taker(self, name: str) -> NodeReport | None:
        """A node, if it is there and pulls."""
        pulls = self._takers is None or name in self._takers
        return self._roster.nodes.get(name) if pulls else None

    def node_changed(self, name: str) -> None:
        """A node came, went, will be taken or is another process by now."""
        if name not in self._roster.nodes:
            self._failures.pop(name, None)
        for known in self._known.values():
            known.node_changed(name)

    def note_copies(self, node: str, copies: Iterable[WeightsOffer]) -> bool:
        """What a node holds; True if any of it is new."""
        news = False
        for offer in copies:
            if offer.version in self._known:
                news |= self._known[offer.version].copied(node, offer)
        return news

    def note_missed(
        self, node: str, missed: Iterable[MissedWeights], now: float
    ) -> list[MissedWeights]:
        """What a node could not get, which knows its latest plan: as far as that is new."""
        return [
            each
            for each in missed
            if each.version in self._known and self._known[each.version].missed(node, each, now)
        ]

    def directions(self, now: float, again: Iterable[str] = ()) -> list[tuple[str, WeightsOffer]]:
        """Where nodes pull from, by their names: whatever is new, and for those in `again` all."""
        to_all_of = dict.fromkeys(again)
        return [
            direction
            for known in self._known.values()
            for direction in known.directions(now, to_all_of)
        ]

    def _version(self, offer: WeightsOffer) -> _Version:
        return _Version(offer, self, self._roster, self._timings, self._failures)


class _Version:
    """One version: where its trainer left it, which nodes hold it, and who pulls it from whom."""

    def __init__(
        self,
        where: WeightsOffer,
        publications: Publications,
        roster: Roster,
        timings: WeightsTimings,
        failures: Counter[str],
    ) -> None:
        self._where = where
        self._publications = publications
        self._roster = roster
        self._failures = failures
        # A node says itself what it could not get in time; this is for words that are lost.
        patience_s = sum(2 * transfer_limit_s(part.nbytes, timings) for part in where.parts)
        self._spread = WeightDistribution(_place(where.store), patience_s, timings, failures)
        self._copies: dict[str, WeightsOffer] = {}
        self._told: dict[str, WeightsOffer] = {}
        """The latest, by node; nothing of those that wait."""
        self.is_missed_at_origin = False
        """A node could not get it where its trainers left it."""
        self._news: dict[str, None] = dict.fromkeys(roster.nodes)
        """Nodes that something is new of since the latest directions."""

    @property
    def where(self) -> WeightsOffer:
        """The trainers left it there."""
        return self._where

    @property
    def is_held(self) -> bool:
        places = {node.store.place for node in self._roster.nodes.values()}
        return any(
            all(part.store.place in places for part in offer.parts)
            for offer in self._copies.values()
        )

    def node_changed(self, name: str) -> None:
        self._news[name] = None

    def copied(self, node: str, copy: WeightsOffer) -> bool:
        if not copy.has_bytes_of(self._where):
            return False  # it was trained again since
        known, self._copies[node] = self._copies.get(node), copy
        if known == copy:
            return False
        source = self._spread.source_of(node)
        if source is not None:
            self._failures.pop(source, None)
        self._news |= dict.fromkeys((node, *self._spread.fed_by(node)))
        return True

    def missed(self, node: str, missed: MissedWeights, now: float) -> bool:
        source = self._spread.source_of(node)
        if source is None or self._at(source).store != missed.store:
            return False
        self.is_missed_at_origin |= source == ORIGIN
        self._spread.failed(node, source, now)
        self._failures[source] += 1
        return True

    def directions(self, now: float, again: dict[str, None]) -> Iterator[tuple[str, WeightsOffer]]:
        news, self._news = self._news, {}
        for name in news:
            self._update_plan(name, now)
        news |= dict.fromkeys(self._spread.plan(now))
        for name in news | again:
            last = self._told.pop(name, None)
            offer = self._direction(name, last)
            if offer is None:
                continue
            self._told[name] = offer
            if name in again or offer != last:
                yield name, offer

    def _direction(self, name: str, last: WeightsOffer | None) -> WeightsOffer | None:
        source = self._spread.source_of(name)
        if source is None and name not in self._copies:
            return None  # it waits, or is gone
        if source is None and last is not None:  # it holds what it was told to pull
            return last
        return self._where if source is None else self._at(source)

    def _update_plan(self, name: str, now: float) -> None:
        """Tell the plan what is so now."""
        node, copy = self._publications.taker(name), self._copies.get(name)
        if copy is not None and (node is None or node.store.place != copy.store.place):
            # It is another process by now, with a store of its own.
            del self._copies[name]
            copy = None
        if node is None:
            self._spread.gone(name)
        elif copy is None:
            self._spread.needs(name, _place(node.store), now)
        else:
            is_origins = node.store.place == self._where.store.place
            feeds = name not in self._roster.leaving and not is_origins
            self._spread.holds(name, _place(node.store), feeds=feeds)

    def _at(self, source: str) -> WeightsOffer:
        return self._where if source == ORIGIN else self._copies[source]


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
