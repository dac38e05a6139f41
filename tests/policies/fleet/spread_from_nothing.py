"""The definition of who pulls a weights version from whom: every plan looks at everyone. Slow, and
what `WeightDistribution` must agree with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from spotlight.policies.fleet.weight_distribution import FED_AT_ONCE, ORIGIN, Place


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


class SpreadFromNothing:
    """See `WeightDistribution`: which nodes there are, hold the version and may feed others is
    handed in."""

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
        rest_s = (1.0, 2.0, 4.0, 8.0)[min(need.failures[source], 4) - 1]
        need.rests_until[source] = now + rest_s
        need.source, need.since = None, now

    def plan(
        self,
        nodes: Mapping[str, Place],
        holders: Collection[str],
        feeders: Collection[str],
        now: float,
    ) -> dict[str, str]:
        """The source of every node that pulls now; those in the line are left out."""
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
        origin_only = elsewhere >= 2 and not need.failures[ORIGIN]

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
