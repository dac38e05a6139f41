"""The list of runs: of each what a person picks one by, read from the ends of its files, and again
only when these have changed.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from spotlight.errors import RunFolderError
from spotlight.record.run_events import RunFinished, RunStarted, decode_event
from spotlight.record.run_metrics import IterationMetrics, decode_metrics
from spotlight.store.run_folder import read_config
from spotlight.web.refusing import Refused
from spotlight.web.shown_runs import ShownRuns

_TAIL = 256 * 1024
"""Bytes of a file's end."""
_FILES = ("config.yaml", "metrics.jsonl", "events.jsonl", "ledger.json")


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the list."""

    name: str
    outcome: str = "unfinished"
    iteration: int = 0
    iterations: int = 0
    validation: float | None = None
    spent: float | None = None


class Summaries:
    """See the module's docstring."""

    def __init__(self, runs: ShownRuns) -> None:
        self._runs = runs
        self._known: dict[str, tuple[object, RunSummary]] = {}

    def list(self) -> list[RunSummary]:
        """Those that were written to last first."""
        known = {}
        for name in self._runs.names():
            try:
                folder = self._runs.find(name)
            except Refused:  # it is gone
                continue
            stamp = tuple(map(_stamp, (folder / file for file in _FILES)))
            was = self._known.get(name)
            known[name] = was if was and was[0] == stamp else (stamp, _summary(name, folder))
        self._known = known
        return [summary for _, summary in known.values()]


def _summary(name: str, folder: Path) -> RunSummary:
    iteration, validation = 0, None
    for line in _end_of(folder / "metrics.jsonl"):
        try:
            record = decode_metrics(line)
        except msgspec.MsgspecError:
            continue
        if isinstance(record, IterationMetrics):
            iteration = record.iteration + 1
        else:
            validation = record.score
    try:
        iterations = read_config(folder).iterations
    except RunFolderError:
        iterations = 0
    return RunSummary(
        name=name,
        outcome=_outcome(folder),
        iteration=iteration,
        iterations=iterations,
        validation=validation,
    )


def _outcome(folder: Path) -> str:
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
    return "running"


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
