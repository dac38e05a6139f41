"""Reads what a run on this machine writes down, while it goes on.

Every line is given once, in order of time as far as all files tell. Where a run goes back to a
checkpoint `metrics.jsonl` is replaced by a part of itself: what of it was given is not given again,
and what is then made again is given as well.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from spotlight.record.run_events import WorkerStateBegan, decode_event
from spotlight.record.run_metrics import IterationMetrics, decode_metrics, further_metrics
from spotlight.store.record_files import METRICS, OLDER_STATES, STATES, read_whole_events
from spotlight.trackers import IterationRecord, RunRecords

_AT_ONCE = 1024 * 1024
"""Bytes of a file."""
_MUCH = _AT_ONCE // 2
"""Who reads so much at once may find more behind it."""
STATES_BEFORE = 4 * 1024 * 1024
"""Bytes of the states of workers that are read of what is there already."""


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
        files = _Metrics(run / METRICS), _States(run, from_start=from_start), _Events(run)
        self._sources = [_Source(file) for file in files]
        self._put = put
        while not from_start and any(source.skip() for source in self._sources):
            pass

    def poll(self) -> int:
        """Pass on what was written since, or the beginning of it; returns how many records."""
        for source in self._sources:
            source.read()
        # What one file tells of later times has to wait for the others.
        until = min(source.told_until_s for source in self._sources)
        records = [record for source in self._sources for record in source.take(until)]
        for record in sorted(records, key=_time_s):
            self._put(record)
        return len(records)


class _File(Protocol):
    has_more: bool
    """Whether there is more to read than was read last."""

    def new(self) -> list[RunRecords]:
        """What was written since, or the beginning of it."""
        ...


class _Source:
    """A file, and what was read of it and not passed on yet."""

    def __init__(self, file: _File) -> None:
        self._file = file
        self._read: deque[RunRecords] = deque()
        self.told_until_s = math.inf
        """Everything was read that is earlier than this."""

    def read(self) -> None:
        """Read on if nothing waits."""
        while not self._read:
            self._read.extend(self._file.new())
            if not self._file.has_more:
                break
        latest = max(map(_time_s, self._read), default=math.inf)
        self.told_until_s = latest if self._file.has_more else math.inf

    def skip(self) -> bool:
        """Pass over what there is; whether there was any."""
        return bool(self._file.new())

    def take(self, until_s: float) -> list[RunRecords]:
        """What was read of times up to that one."""
        taken = [record for record in self._read if _time_s(record) <= until_s]
        if taken:
            self._read = deque(record for record in self._read if _time_s(record) > until_s)
        return taken


class _Events:
    """The events, to which lines are only added."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._end = 0
        self.has_more = True

    def new(self) -> list[RunRecords]:
        """Events of whole lines that were not given yet; none of a line that cannot be read."""
        whole = read_whole_events(self._run, self._end, _AT_ONCE)
        self.has_more = len(whole) >= _MUCH
        self._end += len(whole)
        return [event for line in whole.split(b"\n") for event in _decoded(decode_event, line)]


class _States:
    """The states of workers, whose file is set aside after a while."""

    def __init__(self, run: Path, *, from_start: bool) -> None:
        self._run = run
        self._inode = self._end = 0
        self.has_more = True
        if from_start:
            self._inode, self._end = self._beginning()

    def new(self) -> list[RunRecords]:
        """Those of whole lines that were not given yet; none that is said once more."""
        older = self._read(OLDER_STATES, goes_on=True)
        whole = older or self._read(STATES, goes_on=False)
        self.has_more = bool(older) or len(whole) >= _MUCH
        events = [event for line in whole.split(b"\n") for event in _decoded(decode_event, line)]
        return [each for each in events if not (isinstance(each, WorkerStateBegan) and each.again)]

    def _beginning(self) -> tuple[int, int]:
        """The file to begin with, and where in it: not all is read where very much is there."""
        at, left = (0, 0), STATES_BEFORE
        for name in (STATES, OLDER_STATES):
            try:
                status = os.stat(self._run / name)
            except FileNotFoundError:
                break
            at = status.st_ino, max(0, status.st_size - left)
            left -= status.st_size
            if left <= 0:
                break
        return at

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
        self.has_more = True
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
            self.has_more = False
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.has_more = len(whole) >= _MUCH
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
