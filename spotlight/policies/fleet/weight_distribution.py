"""Where each node pulls a weights version from, so that the version spreads in a tree. Pure: times,
in seconds, are handed in.

Whoever holds the version feeds others, a few at a time, so the number of holders multiplies with
every round and the origin, the trainer's node, feeds only the first. Everyone waits in one line.
A node whose source fails or takes too long goes to the end of the line, then to another holder;
one that two holders have failed waits for the origin.

What has changed is told, and a plan looks only at what that can change: nodes in the line while a
source is free, those beside a new holder, and those whose time is up.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from spotlight.timings import WeightsTimings

ORIGIN = ""
"""Stands for the trainer's node among the sources; nodes have longer names."""
FED_AT_ONCE = 2
"""Nodes of other machines that one holder feeds at a time."""
_FAILURES_ELSEWHERE = 2
"""A node that was failed so often by other holders waits for the origin."""
_SLOWEST_BYTES_PER_S = 20e6


def transfer_limit_s(nbytes: int, timings: WeightsTimings) -> float:
    """Seconds after which a transfer of so many bytes has failed."""
    return timings.shortest_limit_s + nbytes / _SLOWEST_BYTES_PER_S


@dataclass(frozen=True)
class Place:
    """Where a node is; empty parts are not known."""

    machine: str
    """The machine within which a bundle is shared without copying it."""
    neighbourhood: str = ""
    """The neighbourhood of those who share a rack, a subnet or a zone."""

    def distance(self, other: Place) -> int:
        """0 on one machine, 1 in one neighbourhood, 2 elsewhere."""
        if self.machine and self.machine == other.machine:
            return 0
        return 1 if self.neighbourhood and self.neighbourhood == other.neighbourhood else 2


@dataclass
class _Need:
    """What is known of a node that does not hold the version."""

    place: Place
    since: float
    """When it came into the line."""
    source: str | None = None
    fed_since: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    """How often it failed to get it, by source."""
    rests_until: dict[str, float] = field(default_factory=dict)
    """When a source that failed it may be asked again."""


_Rank = tuple[int, int, bool, str]
"""Failures, load, whether it is the origin, name: the least is asked first of those as near."""


@dataclass
class _Source:
    """What is known of one that holds the version and may feed others."""

    name: str
    place: Place
    failures: int = 0
    """How often nodes failed to get something there, all together."""
    load: int = 0
    """Nodes that it feeds over the network."""
    fed: dict[str, None] = field(default_factory=dict)

    @property
    def rank(self) -> _Rank:
        """See `_Rank`."""
        return self.failures, self.load, self.name == ORIGIN, self.name


class _Sources:
    """Those that may feed others, by what a node that looks for one asks of them."""

    def __init__(self) -> None:
        self._known: dict[str, _Source] = {}
        self._free: list[_Rank] = []
        """Least first, as in every other list here."""
        self._free_near: dict[str, list[_Rank]] = {}
        """The free sources by neighbourhood."""
        self._beside: dict[str, list[_Rank]] = {}
        """The sources by machine, free or not: bundles are shared there."""

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __getitem__(self, name: str) -> _Source:
        return self._known[name]

    @property
    def any_free(self) -> bool:
        """Whether a node anywhere may be fed."""
        return bool(self._free)

    def add(self, source: _Source) -> None:
        """One more may feed others."""
        self._known[source.name] = source
        for ranks in self._lists(source):
            insort(ranks, source.rank)

    def remove(self, name: str) -> _Source:
        """It feeds nobody any more."""
        source = self._known.pop(name)
        for ranks in self._lists(source):
            del ranks[bisect_left(ranks, source.rank)]
        return source

    def change(self, name: str, *, load: int = 0, failures: int = 0) -> None:
        """Add to what is known of one."""
        source = self.remove(name)
        source.load += load
        source.failures += failures
        self.add(source)

    def for_one_at(self, place: Place, but_not: Collection[str]) -> Iterator[_Source]:
        """The first to ask of those beside it, near it and anywhere, as far as they may feed it."""
        lists = (
            self._beside.get(place.machine, []) if place.machine else [],
            self._free_near.get(place.neighbourhood, []) if place.neighbourhood else [],
            self._free,
        )
        for ranks in lists:
            first = next((rank[-1] for rank in ranks if rank[-1] not in but_not), None)
            if first is not None:
                yield self._known[first]

    def has_beside(self, place: Place) -> bool:
        """Whether one is on the same machine."""
        return bool(place.machine and self._beside.get(place.machine))

    def _lists(self, source: _Source) -> Iterator[list[_Rank]]:
        yield self._beside.setdefault(source.place.machine, [])
        if source.load < FED_AT_ONCE:
            yield self._free
            yield self._free_near.setdefault(source.place.neighbourhood, [])


class WeightDistribution:
    """How one version spreads.

    A node keeps its source until it holds the version, its source feeds nobody any more or failed
    it, or its time is up.

    Args:
        origin: where its trainer's node is. It holds the version for as long as it is needed.
        patience_s: a node that was not heard of for so long is not being fed any more.
        failures: of sources with earlier versions, since they fed somebody: one that nobody can
            reach is asked after the others.
    """

    def __init__(
        self,
        origin: Place,
        patience_s: float,
        timings: WeightsTimings,
        failures: Mapping[str, int] = {},
    ) -> None:
        self._rests_s = timings.rests_s
        self._patience_s = patience_s
        self._needs: dict[str, _Need] = {}
        self._line: list[tuple[float, str]] = []
        """Who waits, by when that began."""
        self._waiting_at: dict[str, dict[str, None]] = {}
        """The same, by machine."""
        self._sources = _Sources()
        self._sources.add(_Source(ORIGIN, origin))
        self._failures: Counter[str] = Counter(failures)
        """The failures of all nodes by source, whether or not that is one now."""
        self._look_at: dict[str, None] = {}
        """Those who wait and may find a source now, wherever they are in the line."""
        self._rests: list[tuple[float, str]] = []
        """When somebody may ask a source again; a heap."""
        self._limits: deque[tuple[float, str]] = deque()
        """When somebody was given a source, and who, in that order."""
        self._changed: dict[str, None] = {}
        """Whose source may have changed since the latest plan."""

    def source_of(self, node: str) -> str | None:
        """Where a node pulls from; None: it holds the version, waits, or is not known."""
        need = self._needs.get(node)
        return None if need is None else need.source

    def fed_by(self, source: str) -> tuple[str, ...]:
        """The nodes that pull from one."""
        return tuple(self._sources[source].fed) if source in self._sources else ()

    def needs(self, node: str, place: Place, now: float) -> None:
        """A node is there that does not hold the version; nothing changes if that is known."""
        self._feeds_no_more(node)
        need = self._needs.get(node)
        if need is not None and need.place == place:
            return
        self.gone(node)
        self._needs[node] = _Need(place, now)
        self._wait(node)

    def holds(self, node: str, place: Place, *, feeds: bool) -> None:
        """A node holds the version, and may feed others or may not."""
        self._forget(node)
        if node in self._sources and not (feeds and self._sources[node].place == place):
            self._feeds_no_more(node)
        if feeds and node not in self._sources:
            self._sources.add(_Source(node, place, self._failures[node]))
            self._look_at |= self._waiting_at.get(place.machine, {}) if place.machine else {}

    def gone(self, node: str) -> None:
        """A node is not there any more."""
        self._feeds_no_more(node)
        self._forget(node)

    def failed(self, node: str, source: str, now: float) -> None:
        """A source did not give a node the version; nothing changes unless it was to feed it."""
        need = self._needs.get(node)
        if need is None or need.source != source:
            return
        self._failures[source] += 1
        self._sources.change(source, failures=1)
        need.failures[source] += 1
        rest_s = self._rests_s[min(need.failures[source], len(self._rests_s)) - 1]
        need.rests_until[source] = now + rest_s
        heapq.heappush(self._rests, (now + rest_s, node))
        self._release(node)
        need.since = now
        self._wait(node)

    def plan(self, now: float) -> dict[str, str | None]:
        """The sources of nodes that have others than at the latest plan, or none any more."""
        self._end_what_takes_too_long(now)
        while self._rests and self._rests[0][0] <= now:
            self._look_at[heapq.heappop(self._rests)[1]] = None
        for _, node in self._in_line():
            self._find_source(node, now)
        changed, self._changed = self._changed, {}
        return {node: self.source_of(node) for node in changed}

    def _in_line(self) -> Iterator[tuple[float, str]]:
        """Those who may find a source, first come first served."""
        position = 0
        while self._sources.any_free and position < len(self._line):
            first = self._line[position]
            yield first
            # Else it found one and left the line.
            position += position < len(self._line) and self._line[position] == first
        marked, self._look_at = self._look_at, {}
        waiting = [(self._needs[node].since, node) for node in marked if self._waits(node)]
        yield from sorted(waiting)

    def _end_what_takes_too_long(self, now: float) -> None:
        while self._limits and now - self._limits[0][0] > self._patience_s:
            since, node = self._limits.popleft()
            need = self._needs.get(node)
            if need is not None and need.source is not None and need.fed_since == since:
                self.failed(node, need.source, now)

    def _find_source(self, node: str, now: float) -> None:
        """The nearest free source of those that failed it least; else it waits."""
        need = self._needs[node]
        best = min(self._options(need, now), key=lambda it: _order(need, it), default=None)
        if best is None:
            return
        self._leave_line(node)
        need.source, need.fed_since = best.name, now
        self._limits.append((now, node))
        self._changed[node] = None
        best.fed[node] = None
        if need.place.distance(best.place) > 0:
            self._sources.change(best.name, load=1)

    def _options(self, need: _Need, now: float) -> Iterator[_Source]:
        """Among them is the one to ask."""
        failures = need.failures
        elsewhere = failures.total() - failures[ORIGIN]
        if elsewhere >= _FAILURES_ELSEWHERE and not failures[ORIGIN]:
            if self._may_feed(ORIGIN, need):
                yield self._sources[ORIGIN]
            return
        yield from self._sources.for_one_at(need.place, but_not=need.rests_until)
        for name, rests_until in need.rests_until.items():
            if rests_until <= now and self._may_feed(name, need):
                yield self._sources[name]

    def _may_feed(self, name: str, need: _Need) -> bool:
        if name not in self._sources:
            return False
        source = self._sources[name]
        return source.load < FED_AT_ONCE or need.place.distance(source.place) == 0

    def _waits(self, node: str) -> bool:
        return node in self._needs and self._needs[node].source is None

    def _wait(self, node: str) -> None:
        """Take its place in the line."""
        need = self._needs[node]
        insort(self._line, (need.since, node))
        self._waiting_at.setdefault(need.place.machine, {})[node] = None
        if self._sources.has_beside(need.place):
            self._look_at[node] = None

    def _leave_line(self, node: str) -> None:
        need = self._needs[node]
        del self._line[bisect_left(self._line, (need.since, node))]
        del self._waiting_at[need.place.machine][node]

    def _release(self, node: str) -> None:
        """Its source does not feed it any more."""
        need = self._needs[node]
        assert need.source is not None
        source, need.source = self._sources[need.source], None
        self._changed[node] = None
        del source.fed[node]
        if need.place.distance(source.place) > 0:
            self._sources.change(source.name, load=-1)

    def _forget(self, node: str) -> None:
        """A node needs nothing any more."""
        if self._waits(node):
            self._leave_line(node)
        elif node in self._needs:
            self._release(node)
        self._needs.pop(node, None)

    def _feeds_no_more(self, node: str) -> None:
        if node not in self._sources:
            return
        for fed in self.fed_by(node):
            self._release(fed)
            self._wait(fed)  # where it was in the line
        self._sources.remove(node)


def _order(need: _Need, source: _Source) -> tuple[int, int, int, int, bool, str]:
    failures, load, is_origin, name = source.rank
    return (
        need.failures[name],
        failures,
        need.place.distance(source.place),
        load,
        is_origin,
        name,
    )
