"""The list of runs: of each what a person picks one by, read from the ends of its files, and again
only when these have changed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from spotlight.errors import RunFolderError
from spotlight.policies.money.bill import Account, account
from spotlight.record.ledger import Ledger
from spotlight.record.run_events import RunFinished, RunStarted, decode_event
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics, decode_metrics
from spotlight.report.view_building import SILENT_S
from spotlight.store.ledger_file import read_ledger
from spotlight.store.run_folder import read_config
from spotlight.web.refusing import Refused
from spotlight.web.shown_runs import ShownRuns

_TAIL = 256 * 1024
"""Bytes of a file's end."""
_FILES = ("config.yaml", "metrics.jsonl", "events.jsonl", "ledger.json")


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the list."""

    name: str
    """The name of its folder is its own."""
    outcome: str
    """`running`, `finished`, `cancelled`, `failed`, or `unfinished` if nobody works on it."""
    iteration: int
    """How many iterations are done."""
    iterations: int
    validation: float | None
    """The latest score."""
    spent: float | None
    """None if nothing is priced."""


class LatestOfRun(msgspec.Struct, frozen=True, kw_only=True):
    """The latest that a run has written down."""

    name: str
    ended: str = ""
    """How it has ended; empty if it says nothing of that."""
    written_at: float = 0.0
    """Seconds since 1970."""
    iterations: int = 0
    iteration: IterationMetrics | None = None
    validation: ValidationMetrics | None = None
    ledger: Ledger | None = None
    """None if there is none that can be read."""
    account: Account = msgspec.field(default_factory=Account)
    """The sums of the ledger."""


class Summaries:
    """See the module's docstring. It may be asked in any thread.

    Args:
        clock: the wall clock, seconds.
    """

    def __init__(self, runs: ShownRuns, clock: Callable[[], float] = time.time) -> None:
        self._runs = runs
        self._clock = clock
        self._known: dict[str, tuple[object, LatestOfRun]] = {}
        self._one_at_a_time = threading.Lock()

    def summaries(self) -> list[RunSummary]:
        """Those that were written to last first."""
        now = self._clock()
        return [_summary(latest, now) for latest in self.latest()]

    def latest(self) -> list[LatestOfRun]:
        """What is known of all runs, those that were written to last first."""
        with self._one_at_a_time:
            known = {}
            for name in self._runs.names():
                try:
                    folder = self._runs.find(name)
                except Refused:  # it is gone
                    continue
                stamp = tuple(map(_stamp, (folder / file for file in _FILES)))
                was = self._known.get(name)
                known[name] = was if was and was[0] == stamp else (stamp, _latest(name, folder))
            self._known = known
            return [latest for _, latest in known.values()]


def is_silent(latest: LatestOfRun, now: float) -> bool:
    """Whether nobody works on a run, as far as its files show."""
    return bool(latest.ended) or now - latest.written_at > SILENT_S


def _summary(latest: LatestOfRun, now: float) -> RunSummary:
    done, score = latest.iteration, latest.validation
    return RunSummary(
        name=latest.name,
        outcome=latest.ended or ("unfinished" if is_silent(latest, now) else "running"),
        iteration=0 if done is None else done.iteration + 1,
        iterations=latest.iterations,
        validation=None if score is None else score.score,
        spent=None if latest.account.spent is None else float(latest.account.spent),
    )


def _latest(name: str, folder: Path) -> LatestOfRun:
    iteration: IterationMetrics | None = None
    validation: ValidationMetrics | None = None
    for line in _end_of(folder / "metrics.jsonl"):
        try:
            record = decode_metrics(line)
        except msgspec.MsgspecError:
            continue
        if isinstance(record, IterationMetrics):
            iteration = record
        else:
            validation = record
    try:
        iterations = read_config(folder).iterations
    except RunFolderError:
        iterations = 0
    ledger = ledger_of(folder)
    return LatestOfRun(
        name=name,
        ended=_how_it_ended(folder),
        written_at=max((_written_at(folder / file) for file in _FILES), default=0.0),
        iterations=iterations,
        iteration=iteration,
        validation=validation,
        ledger=ledger,
        account=Account() if ledger is None else account(ledger.bills),
    )


def ledger_of(folder: Path) -> Ledger | None:
    """That of a run, or of the time without one; None if there is none that can be read."""
    try:
        return read_ledger(folder)
    except RunFolderError:
        return None


def _how_it_ended(folder: Path) -> str:
    for line in reversed(_end_of(folder / "events.jsonl")):
        if b"run_" not in line:
            continue
        try:
            event = decode_event(line)
        except msgspec.MsgspecError:
            continue
        if isinstance(event, RunFinished):
            return event.outcome
        if isinstance(event, RunStarted):
            break
    return ""


def _end_of(path: Path) -> list[bytes]:
    """The last lines of a file, without one that is torn."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL))
            return file.read(_TAIL).split(b"\n")[:-1]
    except OSError:
        return []


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _written_at(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
