"""What every worker did, as far as it is drawn: its time by state, and no more intervals than can
be seen, however long the run was.

The states of workers are read one by one, twice: the first time to see how long each worker was
there, the second time to draw it. They are on disk for the last hour; what was before is drawn from
the roll-ups. The seconds in each state are those of the ledger, and before it was there, in runs of
earlier versions, of the states. Invariant: the seconds of a worker's states add up exactly to the
worker's total. For that, times are rounded to 1/1024 s: sums of such numbers are exact in floating
point, in any order.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from spotlight.record.ledger import TIME_STATES, TimeState
from spotlight.record.run_events import NodeLost, RunStarted, WorkerLost, WorkerStateBegan
from spotlight.report.formatting import natural_order
from spotlight.report.run_reading import RunHistory
from spotlight.store.rollups import FOLDER as ROLLUPS
from spotlight.store.rollups import each_rollup

STATES: tuple[str, ...] = TIME_STATES
"""What a worker can be doing, useful work first."""
MOST_INTERVALS = 1600
"""Most intervals of a lane, but for those of roll-ups: what is shorter than a pixel would not be
seen."""
MOST_ROLLED_UP = 240
"""Most intervals of a lane before the last hour."""

_TICKS_PER_SECOND = 1024


class Interval(msgspec.Struct, frozen=True):
    """A worker's state over a span of run time, in seconds."""

    state: str
    start: float
    end: float


class Lane(msgspec.Struct, frozen=True):
    """What one worker did; gaps are times when it was not there."""

    worker: str
    node: str
    pool: str
    seconds: dict[str, float]
    """Seconds in each of `STATES`."""
    scoring_s: float
    """Time that scoring took it, whatever its states were, as far as these are on disk."""
    seen_s: float
    """Seconds of the states that are on disk."""
    intervals: tuple[Interval, ...]
    """All of them, or `MOST_INTERVALS` equal parts of the time, each with the state that fills most
    of it; before the last hour, parts of the roll-ups in the same way."""
    close: tuple[Interval, ...]
    """Those that touch the time that is wanted up close."""


def on_tick(seconds: float) -> float:
    """The nearest time of which sums are exact."""
    return round(seconds * _TICKS_PER_SECOND) / _TICKS_PER_SECOND


def resumptions(run: RunHistory) -> tuple[RunStarted, ...]:
    """The starts of the run after the first one."""
    return run.events_of(RunStarted)[1:]


@dataclass
class Worker:
    """One worker, as far as its events were read."""

    name: str
    node: str = ""
    pool: str = ""
    nodes: dict[str, None] = field(default_factory=dict)
    scoring_s: float = 0.0
    """Time that scoring took it, whatever its states were."""
    latest: WorkerStateBegan | None = None
    interval: Interval | None = None
    """The interval that is not known to be over."""

    def add(self, event: WorkerStateBegan) -> None:
        """Its next state."""
        self.node, self.pool = event.node or self.node, event.pool or self.pool
        self.nodes[event.node] = None
        self.scoring_s += event.scoring_s
        self.latest = event


class WorkerStates:
    """One reading of all worker events of a run."""

    def __init__(self, run: RunHistory) -> None:
        self._run = run
        self.workers: dict[str, Worker] = {}
        """Whoever was met so far."""
        self._ends = _Ends(run)

    def __iter__(self) -> Iterator[tuple[Worker, Interval]]:
        """Every worker's intervals, of each worker in order of time, as soon as they are over;
        neighbours with the same state are one interval.
        """
        for event in self._run.worker_states():
            worker = self.workers.setdefault(event.worker, Worker(event.worker))
            before = worker.latest
            if before is not None:
                if event.time_s < before.time_s:  # too late to be put in order
                    event = msgspec.structs.replace(event, time_s=before.time_s)
                yield from self._end(worker, event.time_s)
            worker.add(event)
        for worker in self.workers.values():
            yield from self._end(worker, self._run.run_seconds)
            if worker.interval is not None:
                yield worker, worker.interval

    def _end(self, worker: Worker, next_s: float) -> Iterator[tuple[Worker, Interval]]:
        """Its latest state is over, at the latest at `next_s`."""
        event = worker.latest
        if event is None or event.state == "gone":
            return
        start = on_tick(event.time_s)
        end = on_tick(self._ends.first(worker, event.time_s, next_s))
        if end <= start:
            return
        known = worker.interval
        if known is not None and (known.state, known.end) == (event.state, start):
            start = known.start
        elif known is not None:
            yield worker, known
        worker.interval = Interval(event.state, start, end)


class _Ends:
    """When workers were certainly gone, whatever their last state: lost, or left by a dead run."""

    def __init__(self, run: RunHistory) -> None:
        self._all = [event.time_s for event in resumptions(run)]
        self._lost: defaultdict[tuple[Literal["worker", "node"], str], list[float]]
        self._lost = defaultdict(list)
        for worker in run.events_of(WorkerLost):
            self._lost["worker", worker.worker].append(worker.time_s)
        for node in run.events_of(NodeLost):
            self._lost["node", node.node].append(node.time_s)

    def first(self, worker: Worker, after_s: float, next_s: float) -> float:
        """The first within these times, `next_s` if there is none."""
        times = [self._all, self._lost.get(("worker", worker.name), [])]
        times += [self._lost.get(("node", node), []) for node in worker.nodes]
        places = [(each, bisect_right(each, after_s)) for each in times]
        firsts = (each[place] for each, place in places if place < len(each))
        return min([next_s, *firsts])


@dataclass
class _Extent:
    """What must be known of a lane before it is drawn."""

    start: float
    end: float = 0.0
    count: int = 0
    seen_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STATES, 0.0))

    def add(self, interval: Interval, until_s: float) -> None:
        """The next one; it counts if it began before the ledger did."""
        self.end = interval.end
        self.count += 1
        seconds = interval.end - interval.start
        self.seen_s += seconds
        if interval.start < until_s:
            self.seconds[interval.state] += seconds


class Coarse:
    """At most `bins` intervals over a time, each with the state that fills most of it, from
    intervals that are added in order.
    """

    def __init__(self, start: float, end: float, bins: int) -> None:
        self._start, self._bins = start, bins
        self._width = (end - start) / bins
        self._index = 0
        self._share: dict[str, float] = {}
        """Seconds by state of the bin that is being filled."""
        self._done: list[Interval] = []

    def add(self, interval: Interval) -> None:
        """The next one."""
        first, last = self._bin(interval.start), self._bin(interval.end)
        for index in range(first, last + 1):
            if index != self._index:
                self._finish(index)
            left, right = self._edges(index)
            seconds = min(interval.end, right) - max(interval.start, left)
            self._share[interval.state] = self._share.get(interval.state, 0.0) + max(0.0, seconds)

    def result(self) -> tuple[Interval, ...]:
        """When all are added."""
        self._finish(self._index)
        return tuple(self._done)

    def _bin(self, time_s: float) -> int:
        return min(self._bins - 1, int((time_s - self._start) / self._width))

    def _edges(self, index: int) -> tuple[float, float]:
        return self._start + index * self._width, self._start + (index + 1) * self._width

    def _finish(self, following: int) -> None:
        share, self._share = self._share, {}
        if share and sum(share.values()) > self._width / 2:
            self._done.append(
                Interval(max(share, key=share.__getitem__), *self._edges(self._index))
            )
        self._index = following


def lanes(run: RunHistory, close_up: tuple[float, float] | None = None) -> tuple[Lane, ...]:
    """What each worker did, reserved pool first, then by name.

    Args:
        close_up: the time, from and to, of which every interval is wanted.
    """
    extents: dict[str, _Extent] = {}
    states = WorkerStates(run)
    until_s = run.states_from_s if run.ledger.number else math.inf
    for worker, interval in states:
        extents.setdefault(worker.name, _Extent(interval.start)).add(interval, until_s)
    drawn, close = _rolled_up(run), defaultdict[str, list[Interval]](list)
    coarse = {
        name: Coarse(extent.start, extent.end, MOST_INTERVALS)
        for name, extent in extents.items()
        if extent.count > MOST_INTERVALS
    }
    for worker, interval in WorkerStates(run):
        if worker.name in coarse:
            coarse[worker.name].add(interval)
        else:
            drawn[worker.name].append(interval)
        if close_up and interval.end > close_up[0] and interval.start < close_up[1]:
            close[worker.name].append(interval)
    for name, each in coarse.items():
        drawn[name] += each.result()
    workers = _accounted(run, extents) | states.workers
    built = [
        Lane(
            worker=name,
            node=worker.node,
            pool=worker.pool,
            seconds=extents.get(name, _Extent(0.0)).seconds,
            scoring_s=worker.scoring_s,
            seen_s=extents.get(name, _Extent(0.0)).seen_s,
            intervals=tuple(sorted(drawn[name], key=_start)),
            close=tuple(close[name]),
        )
        for name, worker in workers.items()
    ]
    return tuple(
        sorted(
            built, key=lambda lane: (lane.pool != "reserved", lane.pool, natural_order(lane.worker))
        )
    )


def _start(interval: Interval) -> float:
    return interval.start


def _accounted(run: RunHistory, extents: dict[str, _Extent]) -> dict[str, Worker]:
    """Whoever is in the ledger; what it says of them is added to their seconds."""
    workers: dict[str, Worker] = {}
    totals: defaultdict[tuple[str, TimeState], int] = defaultdict(int)
    for bill in run.ledger.bills:
        for name, times in bill.times.items():
            workers[name] = Worker(name, bill.node, bill.pool)
            for state, milliseconds in times.items():
                totals[name, state] += milliseconds
    for (name, state), milliseconds in totals.items():
        extent = extents.setdefault(name, _Extent(0.0))
        extent.seconds[state] += on_tick(milliseconds / 1000)
    return workers


def _rolled_up(run: RunHistory) -> defaultdict[str, list[Interval]]:
    """What workers did before the states that are on disk: the state that fills most of each line
    of the roll-ups, by worker."""
    found: defaultdict[str, list[Interval]] = defaultdict(list)
    until = run.ledger.number
    folder, to_s = run.folder / ROLLUPS, run.states_from_s
    for line in each_rollup(folder, 0.0, to_s, MOST_ROLLED_UP, until=until):
        if not found and line.end_s >= to_s:
            break  # no more than the beginning of the first line
        for worker, times in line.times.items():
            if not times:
                continue
            state = max(times, key=times.__getitem__)
            known = found[worker]
            if known and (known[-1].state, known[-1].end) == (state, line.start_s):
                known[-1] = Interval(state, known[-1].start, line.end_s)
            else:
                known.append(Interval(state, line.start_s, line.end_s))
    return found


def state_seconds(workers: Iterable[Lane]) -> dict[str, float]:
    """Seconds in each of `STATES`, summed over workers."""
    seconds = dict.fromkeys(STATES, 0.0)
    for lane in workers:
        for state, one in lane.seconds.items():
            seconds[state] += one
    return seconds
