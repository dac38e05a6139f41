"""What the ledgers of a simulated cluster must say: holds what nodes say of their time against the
time that passed, and what is written against what the coordinators were told.

The truth is the simulation's own: when each process began, and when it took up a job and laid it
down. No account of a node or of a coordinator is looked into.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from spotlight.actors.protocol.down import NodeRefused
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.runtime import Message
from spotlight.record.ledger import Ledger, Milliseconds, NodeBill, WorkerTimes
from spotlight.store.ledger_file import NAME
from spotlight.store.rollups import FOLDER, read_rollups
from spotlight_simulation.history import History

MARK = "every second counts once: "
"""How begins what is wrong of a ledger."""
WRITTEN_AFTER_S = 12.0
"""What a coordinator was told is in a ledger after so long, unless it is stopped."""
_EVERYTHING = 1_000_000_000
_MACHINE = -1
"""The number of the stretch in which bills have the start of a machine."""

Times = Counter[tuple[str, str, str]]
"""Milliseconds by job, worker and state."""


@dataclass
class _NodeProcess:
    """What is true of a node's process."""

    identity: str
    jobs: list[tuple[int, str]]
    """The jobs that it has worked for, each since when in milliseconds; none at first."""
    heard: dict[int, WorkerTimes] = field(default_factory=dict)
    """The latest that a coordinator has heard of each stretch."""
    written: dict[int, WorkerTimes] = field(default_factory=dict)
    """The latest that a ledger must have."""
    machine_ms: int = 0
    """How long its machine had been starting for it."""
    heard_number: int = 0
    """The number of the latest report that was heard."""
    written_number: int = 0

    def said_by(self, report: NodeReport) -> dict[int, WorkerTimes]:
        """What a report comes to, with the start of the machine, which is paid for as well."""
        times = {times.number: times for times in report.times}
        if self.machine_ms:
            states: Milliseconds = {"starting": self.machine_ms}
            workers = {worker.worker: states for worker in report.workers}
            times[_MACHINE] = WorkerTimes(_MACHINE, "", workers)
        return times

    def lasted_ms(self, number: int, now_ms: int) -> int:
        """How long a stretch has lasted until now."""
        begun_ms, _ = self.jobs[number]
        following = self.jobs[number + 1 : number + 2]
        return (following[0][0] if following else now_ms) - begun_ms


class LedgerWatch:
    """See the module's docstring.

    Args:
        runs: the folder of all runs.
        clock: the loop's.
    """

    def __init__(self, history: History, runs: Path, clock: Callable[[], float]) -> None:
        self._history = history
        self._runs = runs
        self._clock = clock
        self._nodes: dict[str, _NodeProcess] = {}
        """The processes by their identities."""
        self._by_scheduler: dict[str, _NodeProcess] = {}
        """The processes by the names that bills give them."""
        self._told: deque[tuple[float, NodeReport]] = deque()
        """What the present coordinator has accepted, and when, as far as it need not be written."""
        self._frozen_at: float | None = None
        self._read: dict[Path, bytes] = {}
        """What was read of each ledger last."""

    # --- what happens ---

    def begun(self, identity: str, machine_s: float = 0.0) -> None:
        """A node's process begins, on a machine that has been starting for so long."""
        machine_ms = round(1000 * machine_s)
        self._nodes[identity] = _NodeProcess(
            identity, [(self._now_ms(), "")], machine_ms=machine_ms
        )

    def works_for(self, identity: str, job: str) -> None:
        """It works for this job from now on, or for none."""
        process = self._nodes[identity]
        if process.jobs[-1][1] != job:
            process.jobs.append((self._now_ms(), job))

    def said(self, identity: str, report: NodeReport) -> None:
        """A node says how it stands: every worker has spent all of its time on something, for the
        job that its node had then."""
        process, now_ms = self._nodes[identity], self._now_ms()
        self._by_scheduler[f"{report.scheduler.process:x}"] = process
        if not report.times or report.times[-1].number != len(process.jobs) - 1:
            self._violation(f"{identity} does not say what it does for {process.jobs[-1]}")
            return
        for times in report.times:
            if times.job_id != process.jobs[times.number][1]:
                self._violation(f"{identity} says of stretch {times.number} another job")
            lasted_ms = process.lasted_ms(times.number, now_ms)
            for worker, states in times.workers.items():
                if sum(states.values()) != lasted_ms:
                    self._violation(
                        f"{worker} of {identity} did something for {sum(states.values())} of"
                        f" {lasted_ms} ms: {states}"
                    )

    def heard(self, report: NodeReport) -> None:
        """A coordinator is told."""
        process = self._by_scheduler[f"{report.scheduler.process:x}"]
        if report.number >= process.heard_number:
            process.heard_number = report.number
            process.heard |= process.said_by(report)

    def answered(self, report: NodeReport, answer: Message) -> None:
        """A coordinator answers it."""
        now = self._clock()
        if not isinstance(answer, NodeRefused):
            self._told.append((now, report))
        self._must_be_written(now)

    def frozen(self) -> None:
        """The coordinator is stopped, perhaps once more."""
        if self._frozen_at is None:
            self._must_be_written(self._clock())
            self._frozen_at = self._clock()

    def thawed(self) -> None:
        """It goes on: what it was told before must be written as long after that."""
        now = self._clock()
        self._told = deque((max(at, now), report) for at, report in self._told)
        self._frozen_at = None

    def coordinator_ended(self) -> None:
        """It was killed; what was not written is said again, to the next one."""
        self._must_be_written(self._clock() if self._frozen_at is None else self._frozen_at)
        self._told.clear()
        self._frozen_at = None

    def _must_be_written(self, now: float) -> None:
        while self._told and self._told[0][0] < now - WRITTEN_AFTER_S:
            _, report = self._told.popleft()
            process = self._by_scheduler[f"{report.scheduler.process:x}"]
            if report.number >= process.written_number:
                process.written_number = report.number
                process.written |= process.said_by(report)

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    # --- what is written ---

    def look(self) -> None:
        """No bill shrinks."""
        for path in self._ledgers():
            data = path.read_bytes()
            before = self._read.get(path)
            if before is not None and before != data:
                for what in _shrunk(_decoded(before), _decoded(data)):
                    self._violation(f"{path.parent.name}: {what}")
            self._read[path] = data

    def check(self) -> None:
        """Put what is wrong into the history, at the end, when no coordinator is there any more."""
        for what in self._amiss():
            self._violation(what)

    def _violation(self, what: str) -> None:
        self._history.violation(MARK + what)

    def _amiss(self) -> Iterator[str]:
        billed: Times = Counter()
        for path in self._ledgers():
            ledger = _decoded(path.read_bytes())
            yield from self._bills_amiss(path.parent, ledger)
            billed += _billed(ledger)
            yield from _rollups_amiss(path.parent, ledger)
        heard, written = self._sum_of("heard"), self._sum_of("written")
        for key in sorted({*billed, *written}):
            if billed[key] > heard[key]:
                yield f"{billed[key]} ms are billed of {key}, and {heard[key]} were said"
            if billed[key] < written[key]:
                yield f"{billed[key]} ms are billed of {key}, and {written[key]} must be"

    def _ledgers(self) -> list[Path]:
        places = (self._runs, *self._runs.glob("*/"))
        return [path for place in places if (path := place / NAME).exists()]

    def _bills_amiss(self, folder: Path, ledger: Ledger) -> Iterator[str]:
        """The ledger of a run has the time of its job only, and each bill is of the job for which
        its process worked then."""
        jobs = sorted({bill.job for bill in ledger.bills})
        if folder != self._runs and (len(jobs) > 1 or "" in jobs):
            yield f"{folder.name} has the time of {jobs}"
        for bill in ledger.bills:
            process = self._by_scheduler.get(bill.process)
            if process is None:
                if bill.process:
                    yield f"nobody knows the process {bill.process} of a bill of {bill.node}"
            elif bill.number == _MACHINE and process.machine_ms:
                if bill.job:
                    yield f"the start of the machine of {process.identity} is of {bill.job!r}"
            elif not 0 <= bill.number < len(process.jobs):
                yield f"{process.identity} had no stretch {bill.number}"
            elif bill.job != process.jobs[bill.number][1]:
                yield f"stretch {bill.number} of {process.identity} is not of {bill.job!r}"

    def _sum_of(self, what: str) -> Times:
        times: Times = Counter()
        for process in self._nodes.values():
            known: dict[int, WorkerTimes] = getattr(process, what)
            for stretch in known.values():
                for worker, states in stretch.workers.items():
                    for state, time_ms in states.items():
                        times[stretch.job_id, worker, state] += time_ms
        return times


def _decoded(data: bytes) -> Ledger:
    return msgspec.json.decode(data, type=Ledger)


def _billed(ledger: Ledger) -> Times:
    times: Times = Counter()
    for bill in ledger.bills:
        for worker, states in bill.times.items():
            for state, time_ms in states.items():
                times[bill.job, worker, state] += time_ms
    return times


def _shrunk(before: Ledger, after: Ledger) -> Iterator[str]:
    """Bills of a stretch at several prices are in order; those of processes that are long gone are
    one."""
    if after.number <= before.number:
        yield f"write {after.number} follows {before.number}"
    kept: defaultdict[tuple[str, int], list[NodeBill]] = defaultdict(list)
    for bill in after.bills:
        kept[bill.process, bill.number].append(bill)
    for bill in before.bills:
        its = kept.get((bill.process, bill.number))
        if not bill.process or not its:
            continue
        later = its.pop(0)
        if later.from_at != bill.from_at or later.to_at < bill.to_at or later.price != bill.price:
            yield f"the bill of {bill.node} from {bill.from_at} becomes another one"
        for worker, states in bill.times.items():
            for state, time_ms in states.items():
                now_ms = later.times.get(worker, {}).get(state, 0)
                if now_ms < time_ms:
                    yield f"{state} of {worker} shrinks from {time_ms} to {now_ms} ms"


def _rollups_amiss(folder: Path, ledger: Ledger) -> Iterator[str]:
    """The lines that a ledger accounts for add up to it."""
    if not (folder / FOLDER).is_dir():
        return
    lines: Counter[tuple[str, str]] = Counter()
    rollups = folder / FOLDER
    for line in read_rollups(rollups, 0.0, float("inf"), _EVERYTHING, until=ledger.number):
        for worker, states in line.times.items():
            for state, time_ms in states.items():
                lines[worker, state] += time_ms
    billed: Counter[tuple[str, str]] = Counter()
    for (_, worker, what), time_ms in _billed(ledger).items():
        billed[worker, what] += time_ms
    for key in sorted({*lines, *billed}):
        if lines[key] != billed[key]:
            yield f"{folder.name}: the lines have {lines[key]} ms of {key}, and bills {billed[key]}"
