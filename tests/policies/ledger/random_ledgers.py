"""Random lives of nodes and coordinators, and what every millisecond of them went to, added up in
the plainest way: what the ledger must say in the end.

Nodes come and go under the same names, work for one job after the other, and report over a network
that loses, repeats and overtakes. Coordinators write, and are killed: before, between and after
what they write. Prices change.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from spotlight.policies.ledger.book import Book, Said
from spotlight.policies.ledger.node_times import MOST_STRETCHES, NodeTimes
from spotlight.record.ledger import Ledger, NodeBill, Price, RollupLine, WorkerTimes
from spotlight.types import WorkerState

JOBS = ("", "job-a", "job-b", "job-c")
_NODES = ("reserved-0", "spot-0", "spot-1")
_WORKERS = 2
_BEGAN_AT = 1_767_225_600.0
_STATES = get_args(WorkerState)
_LONG_S = 100_000.0
"""Longer than anything is said of a process that is gone."""

Key = tuple[str, str, str, str]
"""A node, a job, a worker, a state."""


class Moment(NamedTuple):
    """What a worker does from a time on, in whole milliseconds."""

    ms: int
    number: int
    job: str
    state: str


@dataclass
class Process:
    """A node's process, and the truth of it."""

    node: str
    name: str
    times: NodeTimes
    begun_ms: int
    workers: tuple[str, ...]
    number: int = 0
    job: str = ""
    has_notice: bool = False
    doing: dict[str, str] = field(default_factory=dict)
    moments: dict[str, list[Moment]] = field(default_factory=lambda: defaultdict(list))
    known: dict[int, int] = field(default_factory=dict)
    """Until when the coordinator knows of each stretch."""

    def note(self, now_ms: int) -> None:
        """What is so from now on."""
        for worker in self.workers:
            state = self.doing[worker]
            if state == "gone":
                state = "lost"
            if state == "idle" and self.has_notice:
                state = "draining"
            self.moments[worker].append(Moment(now_ms, self.number, self.job, state))

    def truth(self, until_ms: dict[int, int]) -> Counter[tuple[int, str, str, str]]:
        """Of each stretch until a time: every single span, by stretch, job, worker and state."""
        found: Counter[tuple[int, str, str, str]] = Counter()
        for worker, moments in self.moments.items():
            for moment, following in zip(moments, [*moments[1:], None], strict=True):
                end = until_ms.get(moment.number, moment.ms)
                if following is not None:
                    end = min(end, following.ms)
                if end > moment.ms:
                    found[moment.number, moment.job, worker, moment.state] += end - moment.ms
        return found


class Report(NamedTuple):
    """What a process said at a time."""

    process: Process
    at_ms: int
    times: tuple[WorkerTimes, ...]


@dataclass
class Disk:
    """What outlives a coordinator."""

    ledgers: dict[str, Ledger] = field(default_factory=lambda: {job: Ledger() for job in JOBS})
    lines: dict[str, list[RollupLine]] = field(default_factory=lambda: {job: [] for job in JOBS})
    known: dict[tuple[str, int], int] = field(default_factory=dict)
    """Until when the ledgers know of each stretch, by the truth."""
    usd: dict[str, float] = field(default_factory=lambda: dict.fromkeys(JOBS, 0.0))


class RandomLife:
    """See the module's docstring. `problems` tells what is wrong of what is written."""

    def __init__(self, seed: int, *, steps: int = 300) -> None:
        self.rng = random.Random(seed)
        self.now = self.rng.uniform(0.0, 1000.0)
        self.disk = Disk()
        self.problems: list[str] = []
        self.writes = self.crashes = 0
        self._steps = steps
        self._count = 0
        self._all: list[Process] = []
        self._processes: dict[str, Process] = {}
        self._network: list[Report] = []
        self._prices: dict[str, Price | None] = dict.fromkeys(_NODES)
        self._usd: dict[str, float] = {}
        self._books: dict[str, Book] = {}
        self._heard: set[str] = set()
        """Processes of which the present coordinator has heard."""
        for node in _NODES:
            self._start(node)
        self._begin_coordinator()

    def run(self) -> None:
        """Live."""
        acts = {
            self._work: 30,
            self._go_over: 3,
            self._turn_notice: 2,
            self._say: 20,
            self._hear: 25,
            self._write: 5,
            self._crash: 1,
            self._restart: 2,
            self._reprice: 1,
        }
        for _ in range(self._steps):
            self.now += self.rng.choice([0.0, 0.0004, 0.01, 0.5, 5.0]) * self.rng.random()
            if self.rng.random() < 0.003:
                self._wait_long()
            (act,) = self.rng.choices(list(acts), list(acts.values()))
            act()
        self._write()

    def _wait_long(self) -> None:
        """So that nothing is under way of a process that is gone, and all others are heard."""
        self.now += _LONG_S
        self._network = [
            Report(process, _whole(self.now), process.times.told(self.now))
            for process in self._processes.values()
        ]
        for report in self._network:
            self._take(report)

    # --- nodes ---

    def _start(self, node: str) -> None:
        self._count += 1
        workers = tuple(f"{node}/{number}" for number in range(_WORKERS))
        before_s = self.rng.choice([0.0, 1.2345])
        process = Process(
            node=node,
            name=f"{self._count:x}",
            times=NodeTimes(workers, self.now, before_s),
            begun_ms=_whole(self.now) - _whole(before_s),
            workers=workers,
            doing=dict.fromkeys(workers, "starting"),
        )
        process.note(process.begun_ms)
        self._processes[node] = process
        self._all.append(process)

    def _restart(self) -> None:
        node = self.rng.choice(_NODES)
        before = self._processes[node]
        self._start(node)
        if before.name in self._heard and self.rng.random() < 0.7:
            for book in self._books.values():
                book.gone(before.name)

    def _some(self) -> Process:
        return self._processes[self.rng.choice(_NODES)]

    def _work(self) -> None:
        process = self._some()
        worker, state = self.rng.choice(process.workers), self.rng.choice(_STATES)
        process.times.does(worker, state, self.now)
        process.doing[worker] = state
        process.note(_whole(self.now))

    def _go_over(self) -> None:
        process, job = self._some(), self.rng.choice(JOBS)
        known = max(process.known, default=0)
        if process.number - known > MOST_STRETCHES - 4:
            return  # a coordinator hears more often
        is_another = process.times.work_for(job, self.now)
        if is_another != (job != process.job):
            self.problems.append(f"{process.name} goes over to {job} from {process.job}")
        if is_another:
            process.job, process.number = job, process.number + 1
            process.note(_whole(self.now))

    def _turn_notice(self) -> None:
        process = self._some()
        process.has_notice = not process.has_notice
        process.times.leaves(process.has_notice, self.now)
        process.note(_whole(self.now))

    def _say(self) -> None:
        process = self._some()
        told = process.times.told(self.now)
        self._network.append(Report(process, _whole(self.now), told))

    # --- the coordinator ---

    def _begin_coordinator(self) -> None:
        """With what is on disk."""
        self._books = {job: Book(ledger) for job, ledger in self.disk.ledgers.items()}
        for job, lines in self.disk.lines.items():
            number = self.disk.ledgers[job].number
            self.disk.lines[job] = [line for line in lines if line.number <= number]
        for process in self._all:
            process.known = {
                number: ms for (name, number), ms in self.disk.known.items() if name == process.name
            }
        self._usd = dict(self.disk.usd)
        self._heard = set()

    def _hear(self) -> None:
        """Of a report, sooner or later, or twice."""
        if not self._network:
            return
        place = self.rng.choice([0, len(self._network) - 1, self.rng.randrange(len(self._network))])
        report = self._network[place]
        if self.rng.random() < 0.8:
            del self._network[place]
        if self.rng.random() < 0.8:  # else it is lost
            self._take(report)

    def _take(self, report: Report) -> None:
        process = report.process
        self._heard.add(process.name)
        price = self._prices[process.node]
        known = dict(process.known)
        for times in report.times:
            said = Said(process.node, "spot", process.name, len(process.workers))
            book = self._books[times.job_id]
            book.add(said, times, price, self._at())
            ends_ms = min([report.at_ms, *_ends_of(process, times.number)])
            process.known[times.number] = max(known.get(times.number, 0), ends_ms)
        if price is not None:
            grown = process.truth(process.known) - process.truth(known)
            for (_, job, _, _), ms in grown.items():
                self._usd[job] += price.usd_per_gpu_hour * ms / 3_600_000

    def _write(self) -> None:
        """Each ledger, until the coordinator is killed."""
        for job in self.rng.sample(JOBS, len(JOBS)):
            if not self._books[job].has_news:
                continue
            before = self.disk.ledgers[job]
            ledger, line = self._books[job].draft(self._at(), self.now, "USD")
            killed = self.rng.random()
            if killed < 0.03:
                return self._crash()
            self.disk.lines[job].append(line)
            if killed < 0.06:
                return self._crash()
            self.disk.ledgers[job] = ledger
            self._keep_known(job)
            if killed < 0.09:
                return self._crash()
            if killed < 0.5:  # reports come while it is written
                self._hear()
            self._books[job].keep(ledger, line)
            self.writes += 1
            self.problems += self._amiss(job, before)
        return None

    def _keep_known(self, job: str) -> None:
        """What is known of the stretches of a job is on disk."""
        for process in self._all:
            jobs = {m.number: m.job for its in process.moments.values() for m in its}
            for number, ms in process.known.items():
                if jobs.get(number) == job:
                    self.disk.known[process.name, number] = ms
        self.disk.usd[job] = self._usd[job]

    def _crash(self) -> None:
        self.crashes += 1
        self._begin_coordinator()

    def _reprice(self) -> None:
        usd = self.rng.choice([None, 1.0, 2.5])
        price = None if usd is None else Price(usd)
        self._prices[self.rng.choice(_NODES)] = price

    def _at(self) -> float:
        return _BEGAN_AT + self.now

    # --- what must hold ---

    def _amiss(self, job: str, before: Ledger) -> Iterator[str]:
        """Of what was written of a job just now."""
        ledger = self.disk.ledgers[job]
        truth: Counter[Key] = Counter()
        for process in self._all:
            known = {n: ms for (name, n), ms in self.disk.known.items() if name == process.name}
            for (_, its, worker, state), ms in process.truth(known).items():
                if its == job:
                    truth[process.node, its, worker, state] += ms
        billed = _added_up(ledger.bills)
        if billed != truth:
            yield f"{job or 'no job'}: {_difference(billed, truth)}"
        for what, ms in _added_up(before.bills).items():
            if billed[what] < ms:
                yield f"{what} shrinks from {ms} to {billed[what]} ms"
        yield from _smaller_bills(before.bills, ledger.bills)
        lines: Counter[tuple[str, str]] = Counter()
        for line in self.disk.lines[job]:
            for worker, times in line.times.items():
                lines.update({(worker, state): ms for state, ms in times.items()})
        by_worker: Counter[tuple[str, str]] = Counter()
        for (_, _, worker, state), ms in billed.items():
            by_worker[worker, state] += ms
        if lines != by_worker:
            yield f"the lines of {job or 'no job'} do not add up to its ledger"
        spent = sum(self.disk.lines[job][-1].spent.values())
        if abs(spent - self.disk.usd[job]) > 1e-9:
            yield f"{job or 'no job'} cost {self.disk.usd[job]}, not {spent}"


def _added_up(bills: tuple[NodeBill, ...]) -> Counter[Key]:
    found: Counter[Key] = Counter()
    for bill in bills:
        for worker, times in bill.times.items():
            for state, ms in times.items():
                found[bill.node, bill.job, worker, state] += ms
    return found


def _smaller_bills(before: tuple[NodeBill, ...], after: tuple[NodeBill, ...]) -> Iterator[str]:
    """Bills of the same process, stretch and price, of which there may be several, in order."""
    kept: defaultdict[tuple[str, int], list[NodeBill]] = defaultdict(list)
    for bill in after:
        kept[bill.process, bill.number].append(bill)
    for bill in before:
        its = kept.get((bill.process, bill.number))
        if not bill.process or its is None:
            continue  # settled
        later = its.pop(0)
        if later.price != bill.price or later.from_at != bill.from_at or later.to_at < bill.to_at:
            yield f"the bill of {bill.process} from {bill.from_at} is another one later"
        if later.from_at > later.to_at:
            yield f"the bill of {bill.process} ends before it begins"


def _ends_of(process: Process, number: int) -> Iterator[int]:
    """When a stretch was over, if it is."""
    for moments in process.moments.values():
        yield from (moment.ms for moment in moments if moment.number > number)


def _difference(billed: Counter[Key], truth: Counter[Key]) -> str:
    keys = [key for key in {*billed, *truth} if billed[key] != truth[key]]
    key = min(keys)
    return f"{len(keys)} differ, such as {key}: {billed[key]} ms, not {truth[key]}"


def _whole(seconds: float) -> int:
    return round(seconds * 1000)
