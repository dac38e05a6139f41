"""Reads what a run on this machine writes down, while it goes on.

Every line is given once, in order of time as far as all files tell. Where a run goes back to a
checkpoint `metrics.jsonl` is replaced by a part of itself: what of it was given is not given again,
and what is then made again is given as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from spotlight.record.run_events import WorkerStateBegan, decode_event
from spotlight.record.run_metrics import IterationMetrics, decode_metrics, further_metrics
from spotlight.store.record_files import METRICS, OLDER_STATES, STATES, read_whole_events
from spotlight.trackers import IterationRecord, RunRecords

_AT_ONCE = 1024 * 1024
"""Bytes of a file."""


class RecordFollower:
    """See the module's docstring. It begins behind what the files hold when it is made.

    Args:
        run: the run folder.
        put: given each record.
        from_start: begin with what the files hold.
    """

    def __init__(
        self, run: Path, put: Callable[[RunRecords], None], *, from_start: bool = False
    ) -> None:
        self._files = (_Metrics(run / METRICS), _States(run), _Events(run))
        self._put = put
        while not from_start and self._read():
            pass

    def poll(self) -> int:
        """Pass on what was written since, or the beginning of it; returns how many records."""
        records = sorted(self._read(), key=_time_s)
        for record in records:
            self._put(record)
        return len(records)

    def _read(self) -> list[RunRecords]:
        return [record for file in self._files for record in file.new()]


class _Events:
    """The events, to which lines are only added."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._end = 0

    def new(self) -> list[RunRecords]:
        """Events of whole lines that were not given yet; none of a line that cannot be read."""
        whole = read_whole_events(self._run, self._end, _AT_ONCE)
        self._end += len(whole)
        return [event for line in whole.split(b"\n") for event in _decoded(decode_event, line)]


class _States:
    """The states of workers, whose file is set aside after a while."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._inode = self._end = 0

    def new(self) -> list[RunRecords]:
        """Those of whole lines that were not given yet; none that is said once more."""
        whole = self._read(OLDER_STATES, goes_on=True) or self._read(STATES, goes_on=False)
        events = [event for line in whole.split(b"\n") for event in _decoded(decode_event, line)]
        return [each for each in events if not (isinstance(each, WorkerStateBegan) and each.again)]

    def _read(self, name: str, *, goes_on: bool) -> bytes:
        """What is new in a file; with `goes_on` only if it is the one that was read before."""
        try:
            with open(self._run / name, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    if goes_on:
                        return b""
                    self._inode, self._end = inode, 0
                file.seek(self._end)
                data = file.read(_AT_ONCE)
        except FileNotFoundError:
            return b""
        whole = data[: data.rfind(b"\n") + 1]
        self._end += len(whole)
        return whole


class _Metrics:
    """The metrics, whose file may be replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._end = 0
        self._known: set[int] = set()
        """Hashes of the lines that were given; each has its time in it."""

    def new(self) -> list[RunRecords]:
        """Records of whole lines that were not given yet; none of a line that cannot be read."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._end:
                    self._inode, self._end = status.st_ino, 0
                file.seek(self._end)
                data = file.read(_AT_ONCE)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._end += len(whole)
        lines = [line for line in whole.split(b"\n") if hash(line) not in self._known]
        self._known.update(map(hash, lines))
        return [record for line in lines for record in _decoded(_metrics_record, line)]


def _decoded(decode: Callable[[bytes], RunRecords], line: bytes) -> list[RunRecords]:
    try:
        return [decode(line)]
    except msgspec.MsgspecError:  # a damaged line is the report's to tell
        return []


def _metrics_record(line: bytes) -> RunRecords:
    metrics = decode_metrics(line)
    if isinstance(metrics, IterationMetrics):
        return IterationRecord(metrics, further_metrics(line))
    return metrics


def _time_s(record: RunRecords) -> float:
    return record.metrics.time_s if isinstance(record, IterationRecord) else record.time_s
