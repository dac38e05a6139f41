"""Where each node pulls a weights version from, so that the version spreads in a tree. Pure: times,
in seconds, are handed in.

Whoever holds the version feeds others, a few at a time, so the number of holders multiplies with
every round and the origin, the trainer's node, feeds only the first. Everyone waits in one line.
A node whose source fails or takes too long goes to the end of the line, then to another holder;
one that two holders have failed waits for the origin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

ORIGIN = ""
"""Stands for the trainer's node among the sources; nodes have longer names."""
FED_AT_ONCE = 2
"""Nodes of other machines that one holder feeds at a time."""
_FAILURES_ELSEWHERE = 2
"""A node that was failed so often by other holders waits for the origin."""
_RESTS_S = (1.0, 2.0, 4.0, 8.0)
"""A node leaves a source alone for so long that failed it once, twice ..."""
_SLOWEST_BYTES_PER_S = 20e6
_SHORTEST_LIMIT_S = 10.0


def transfer_limit_s(nbytes: int) -> float:
    """Seconds after which a transfer of so many bytes has failed."""
    return _SHORTEST_LIMIT_S + nbytes / _SLOWEST_BYTES_PER_S


@dataclass(frozen=True)
class Place:
    """Where a node is; empty parts are not known."""

    machine: str
    """Within one, a bundle is shared without copying it."""
    neighbourhood: str = ""
    """Of those who share a rack, a subnet or a zone."""

    def distance(self, other: Place) -> int:
        """0 on one machine, 1 in one neighbourhood, 2 elsewhere."""
        if self.machine and self.machine == other.machine:
            return 0
        return 1 if self.neighbourhood and self.neighbourhood == other.neighbourhood else 2


@dataclass
class _Need:
    """What is known of a node that does not hold the version."""

    since: float
    """In the line since then."""
    source: str | None = None
    fed_since: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    """By source."""
    rests_until: dict[str, float] = field(default_factory=dict)
    """When a source that failed it may be asked again."""


class Spread:
    """How one version spreads.

    Args:
        origin: where its trainer's node is. It holds the version for as long as it is needed.
        patience_s: a node that was not heard of for so long is not being fed any more.
    """

    def __init__(self, origin: Place, patience_s: float) -> None:
        self._origin = origin
        self._patience_s = patience_s
        self._needs: dict[str, _Need] = {}
        self._failures: Counter[str] = Counter()
        """By source, of all nodes."""

    def failed(self, node: str, source: str, now: float) -> None:
        """A source did not give a node the version; nothing changes unless it was to feed it."""
        need = self._needs.get(node)
        if need is None or need.source != source:
            return
        self._failures[source] += 1
        need.failures[source] += 1
        rest_s = _RESTS_S[min(need.failures[source], len(_RESTS_S)) - 1]
        need.rests_until[source] = now + rest_s
        need.source, need.since = None, now

    def plan(
        self,
        nodes: Mapping[str, Place],
        holders: Collection[str],
        feeders: Collection[str],
        now: float,
    ) -> dict[str, str]:
        """The source of every node that pulls now; those in the line are left out.

        A node keeps its source until it holds the version, its source feeds nobody any more or
        failed it, or its time is up.

        Args:
            nodes: all that are there and where.
            holders: those of them that hold the version.
            feeders: those of the holders that may feed others; the origin may always.
        """
        places = {ORIGIN: self._origin, **{name: nodes[name] for name in sorted(feeders)}}
        self._update(nodes, holders, places, now)
        load = self._load(nodes, places)
        line = [name for name, need in self._needs.items() if need.source is None]
        for name in sorted(line, key=lambda name: (self._needs[name].since, name)):
            need = self._needs[name]
            need.source = self._choose(need, nodes[name], places, load, now)
            if need.source is not None:
                need.fed_since = now
                load[need.source] += nodes[name].distance(places[need.source]) > 0
        return {name: it.source for name, it in self._needs.items() if it.source is not None}

    def _update(
        self,
        nodes: Mapping[str, Place],
        holders: Collection[str],
        places: Mapping[str, Place],
        now: float,
    ) -> None:
        """Forget who needs nothing any more, and end what cannot go on."""
        needy = [name for name in nodes if name not in holders]
        self._needs = {name: self._needs.get(name) or _Need(now) for name in needy}
        for name, need in self._needs.items():
            if need.source is None:
                continue
            if need.source not in places:
                need.source = None  # keeps its place in the line
            elif now - need.fed_since > self._patience_s:
                self.failed(name, need.source, now)

    def _load(self, nodes: Mapping[str, Place], places: Mapping[str, Place]) -> Counter[str]:
        """How many each source feeds over the network."""
        return Counter(
            need.source
            for name, need in self._needs.items()
            if need.source is not None and nodes[name].distance(places[need.source]) > 0
        )

    def _choose(
        self,
        need: _Need,
        place: Place,
        places: Mapping[str, Place],
        load: Mapping[str, int],
        now: float,
    ) -> str | None:
        """The nearest free source of those that failed it least; None: wait."""
        elsewhere = need.failures.total() - need.failures[ORIGIN]
        origin_only = elsewhere >= _FAILURES_ELSEWHERE and not need.failures[ORIGIN]

        def is_free(source: str) -> bool:
            if (origin_only and source != ORIGIN) or need.rests_until.get(source, now) > now:
                return False
            return load[source] < FED_AT_ONCE or place.distance(places[source]) == 0

        def order(source: str) -> tuple[int, int, int, int, bool, str]:
            return (
                need.failures[source],
                self._failures[source],
                place.distance(places[source]),
                load[source],
                source == ORIGIN,
                source,
            )

        return min(filter(is_free, places), key=order, default=None)
