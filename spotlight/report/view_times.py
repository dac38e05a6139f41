"""What workers did over the time of a run, in bounded memory however long it was: equal parts of
the time, twice as long each whenever there are too many.

Where a lane changes its state seldom enough it is drawn as it was, to the millisecond.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import add

from spotlight.record.ledger import TIME_STATES, Milliseconds, RollupLine, TimeState
from spotlight.report.formatting import natural_order
from spotlight.report.run_view import MOST_BUCKETS, MOST_LANES, Areas, LanePart

_FIRST_WIDTH_S = 0.25
_MOST_TRACKED = 4 * MOST_LANES
"""How many lanes are kept, the first that come; all others count in the areas alone."""
_PLACES = {state: place for place, state in enumerate(TIME_STATES)}
_STATES = len(TIME_STATES)
_POOL_ORDER = {"reserved": 0, "spot": 1}

Part = tuple[int, float, float]
"""(place in `TIME_STATES`, start, end)."""


class _Buckets:
    """Seconds by part of the time and state."""

    def __init__(self) -> None:
        self.seconds = array("d", bytes(8 * _STATES * MOST_BUCKETS))

    def fold(self) -> None:
        old, self.seconds = self.seconds, array("d", bytes(8 * _STATES * MOST_BUCKETS))
        half = _STATES * MOST_BUCKETS // 2
        for state in range(_STATES):
            column = old[state::_STATES]
            self.seconds[state:half:_STATES] = array("d", map(add, column[::2], column[1::2]))

    def of(self, bucket: int) -> array[float]:
        return self.seconds[bucket * _STATES : (bucket + 1) * _STATES]

    def merge(self, other: _Buckets) -> None:
        for place, value in enumerate(other.seconds):
            self.seconds[place] += value


class _Lane:
    def __init__(self, pool: str, node: str) -> None:
        self.pool, self.node = pool, node
        self.buckets = _Buckets()
        self.parts: list[Part] | None = []
        """All of it; None if it has too many parts."""

    def append(self, state: int, start_s: float, end_s: float) -> None:
        if self.parts is None:
            return
        if self.parts and self.parts[-1][0] == state and start_s - self.parts[-1][2] < 1e-3:
            start_s = self.parts.pop()[1]
        self.parts.append((state, start_s, end_s))
        if len(self.parts) > MOST_BUCKETS:
            self.parts = None


class TimeShares:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._width = _FIRST_WIDTH_S
        self._pools: dict[str, _Buckets] = {}
        self._lanes: dict[str, _Lane] = {}
        """The lanes of workers, until there are too many, and then of nodes."""
        self._by_node = False
        self.first_s: float | None = None
        """When the first of it began."""
        self.end_s = 0.0
        """When the last of it ended."""

    def interval(
        self, worker: str, node: str, pool: str, state: TimeState, start_s: float, end_s: float
    ) -> None:
        """A worker was in a state all that time."""
        if end_s <= start_s:
            return
        lane = self._lane(worker, node, pool)
        if lane is not None:
            lane.append(_PLACES[state], start_s, end_s)
        self._add(lane, pool, {state: end_s - start_s}, start_s, end_s)

    def expect(self, end_s: float) -> None:
        """The time goes on until then, at least."""
        while end_s > self._width * MOST_BUCKETS:
            self._width *= 2
            for one in (*self._pools.values(), *(each.buckets for each in self._lanes.values())):
                one.fold()

    def line(self, line: RollupLine, pool_of: Callable[[str], str]) -> None:
        """A line of the roll-ups; `pool_of` tells the pool of a worker."""
        if line.end_s <= line.start_s:
            return
        self._make_room(line.start_s, line.end_s)
        for worker in () if self._by_node else line.times:
            self._lane(worker, worker.rpartition("/")[0], pool_of(worker))
        ones: dict[str, tuple[str, dict[TimeState, int]]] = {}
        """A worker of each lane, and the time of all its workers."""
        for worker, times in line.times.items():
            name = worker.rpartition("/")[0] if self._by_node else worker
            if name not in ones:
                ones[name] = worker, {}
            _count(ones[name][1], times)
        pools: dict[str, dict[TimeState, int]] = {}
        for worker, spent in ones.values():
            pool = pool_of(worker)
            _count(pools.setdefault(pool, {}), spent)
            lane = self._lane(worker, worker.rpartition("/")[0], pool)
            if lane is not None:
                lane.parts = None
                self._spread([lane.buckets.seconds], _in_s(spent), line.start_s, line.end_s)
        for pool, spent in pools.items():
            seconds = self._pools.setdefault(pool, _Buckets()).seconds
            self._spread([seconds], _in_s(spent), line.start_s, line.end_s)

    def seconds(self) -> dict[str, dict[TimeState, float]]:
        """The sums of all workers, by pool and state."""
        return {
            pool: {
                state: round(seconds, 3)
                for place, state in enumerate(TIME_STATES)
                if (seconds := sum(self._pools[pool].seconds[place::_STATES]))
            }
            for pool in sorted(self._pools, key=_pool_order)
        }

    def areas(self) -> Areas:
        """The mean number of workers by pool and state."""
        edges = self._edges()
        widths = [right - left for left, right in pairwise(edges)]
        pools: dict[str, dict[TimeState, tuple[float, ...]]] = {}
        for pool in sorted(self._pools, key=_pool_order):
            seconds = self._pools[pool].seconds
            columns = {
                state: tuple(
                    round(seconds[bucket * _STATES + place] / width, 3)
                    for bucket, width in enumerate(widths)
                )
                for place, state in enumerate(TIME_STATES)
            }
            pools[pool] = {state: each for state, each in columns.items() if any(each)}
        return Areas(edges=tuple(edges) if pools else (), pools=pools)

    def lanes(self) -> tuple[LanePart, ...]:
        """Those of the reserved pool first, then by name; at most `MOST_LANES`: the latest."""
        there = {name: parts for name in self._lanes if (parts := self._parts(name))}
        latest = sorted(
            there,
            key=lambda name: (_pool_order(self._lanes[name].pool), -there[name][-1][2]),
        )[:MOST_LANES]
        ordered = sorted(
            latest, key=lambda name: (_pool_order(self._lanes[name].pool), natural_order(name))
        )
        return tuple(
            LanePart(name=name, pool=self._lanes[name].pool, parts=tuple(there[name]))
            for name in ordered
        )

    def _lane(self, worker: str, node: str, pool: str) -> _Lane | None:
        name = node if self._by_node else worker
        lane = self._lanes.get(name)
        if lane is None and len(self._lanes) == MOST_LANES and not self._by_node:
            self._group_by_node()
            return self._lane(worker, node, pool)
        if lane is None and len(self._lanes) < _MOST_TRACKED:
            lane = self._lanes[name] = _Lane(pool, node)
            if self._by_node:
                lane.parts = None
        return lane

    def _group_by_node(self) -> None:
        lanes, self._lanes, self._by_node = self._lanes, {}, True
        for lane in lanes.values():
            kept = self._lanes.setdefault(lane.node, lane)
            kept.parts = None
            if kept is not lane:
                kept.buckets.merge(lane.buckets)

    def _add(
        self,
        lane: _Lane | None,
        pool: str,
        times: Mapping[TimeState, float],
        start_s: float,
        end_s: float,
    ) -> None:
        self._make_room(start_s, end_s)
        wanted = [self._pools.setdefault(pool, _Buckets()).seconds]
        if lane is not None:
            wanted.append(lane.buckets.seconds)
        self._spread(wanted, times, start_s, end_s)

    def _make_room(self, start_s: float, end_s: float) -> None:
        """For such a time."""
        self.expect(end_s)
        self.first_s = start_s if self.first_s is None else min(self.first_s, start_s)
        self.end_s = max(self.end_s, end_s)

    def _spread(
        self,
        wanted: Sequence[array[float]],
        times: Mapping[TimeState, float],
        start_s: float,
        end_s: float,
    ) -> None:
        """Add seconds to the parts of the time, evenly."""
        first, last = int(start_s / self._width), int(end_s / self._width)
        for bucket in range(first, min(last, MOST_BUCKETS - 1) + 1):
            left, right = bucket * self._width, (bucket + 1) * self._width
            share = (min(right, end_s) - max(left, start_s)) / (end_s - start_s)
            for state, lasted in times.items():
                place = bucket * _STATES + _PLACES[state]
                for seconds in wanted:
                    seconds[place] += lasted * share

    def _edges(self) -> list[float]:
        """Those of all parts that have begun; the last one ends now."""
        end_s = round(self.end_s, 3)
        whole = (number * self._width for number in range(MOST_BUCKETS))
        return [*(edge for edge in whole if edge < end_s - 1e-6), end_s]

    def _parts(self, name: str) -> list[Part]:
        lane = self._lanes[name]
        if lane.parts is not None:
            return [(state, round(start, 3), round(end, 3)) for state, start, end in lane.parts]
        edges = self._edges()
        found: list[Part] = []
        for bucket, (left, right) in enumerate(pairwise(edges)):
            seconds = lane.buckets.of(bucket)
            if sum(seconds) < (right - left) / 2:
                continue
            state = max(range(_STATES), key=seconds.__getitem__)
            if found and found[-1][0] == state and found[-1][2] == left:
                left = found.pop()[1]
            found.append((state, left, right))
        return found


def _count(spent: dict[TimeState, int], times: Milliseconds) -> None:
    for state, milliseconds in times.items():
        spent[state] = spent.get(state, 0) + milliseconds


def _in_s(times: Milliseconds) -> dict[TimeState, float]:
    return {state: milliseconds / 1000 for state, milliseconds in times.items()}


def _pool_order(pool: str) -> tuple[int, str]:
    return _POOL_ORDER.get(pool, 2), pool
