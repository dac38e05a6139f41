"""What every worker did: its seconds by state.

They are those of the ledger, and before it was there, in runs of earlier versions, of the states of
workers. Invariant: the seconds of a worker's states add up exactly to the worker's total. For that,
times are rounded to 1/1024 s: sums of such numbers are exact in floating point, in any order.
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

STATES: tuple[str, ...] = TIME_STATES
"""What a worker can be doing, useful work first."""

_TICKS_PER_SECOND = 1024


class Interval(msgspec.Struct, frozen=True):
    """A worker's state over a span of run time, in seconds."""

    state: str
    start: float
    end: float


class WorkerSeconds(msgspec.Struct, frozen=True):
    """What one worker did."""

    worker: str
    node: str
    pool: str
    seconds: dict[str, float]
    """Seconds in each of `STATES`."""
    scoring_s: float
    """Time that scoring took it, whatever its states were, as far as these are on disk."""
    seen_s: float
    """Seconds of the states that are on disk."""


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
class _Seconds:
    """Those of one worker."""

    seen_s: float = 0.0
    by_state: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STATES, 0.0))

    def add(self, interval: Interval, until_s: float) -> None:
        """The next one; it counts if it began before the ledger did."""
        seconds = interval.end - interval.start
        self.seen_s += seconds
        if interval.start < until_s:
            self.by_state[interval.state] += seconds


def worker_seconds(run: RunHistory) -> tuple[WorkerSeconds, ...]:
    """What each worker did, reserved pool first, then by name."""
    found: defaultdict[str, _Seconds] = defaultdict(_Seconds)
    states = WorkerStates(run)
    until_s = run.states_from_s if run.ledger.number else math.inf
    for worker, interval in states:
        found[worker.name].add(interval, until_s)
    workers = _accounted(run, found) | states.workers
    built = [
        WorkerSeconds(
            worker=name,
            node=worker.node,
            pool=worker.pool,
            seconds=found[name].by_state,
            scoring_s=worker.scoring_s,
            seen_s=found[name].seen_s,
        )
        for name, worker in workers.items()
    ]
    return tuple(
        sorted(built, key=lambda it: (it.pool != "reserved", it.pool, natural_order(it.worker)))
    )


def _accounted(run: RunHistory, found: defaultdict[str, _Seconds]) -> dict[str, Worker]:
    """Whoever is in the ledger; what it says of them is added to their seconds."""
    workers: dict[str, Worker] = {}
    totals: defaultdict[tuple[str, TimeState], int] = defaultdict(int)
    for bill in run.ledger.bills:
        for name, times in bill.times.items():
            workers[name] = Worker(name, bill.node, bill.pool)
            for state, milliseconds in times.items():
                totals[name, state] += milliseconds
    for (name, state), milliseconds in totals.items():
        found[name].by_state[state] += on_tick(milliseconds / 1000)
    return workers


def state_seconds(workers: Iterable[WorkerSeconds]) -> dict[str, float]:
    """Seconds in each of `STATES`, summed over workers."""
    seconds = dict.fromkeys(STATES, 0.0)
    for worker in workers:
        for state, one in worker.seconds.items():
            seconds[state] += one
    return seconds
