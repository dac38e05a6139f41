"""Reads what a run on this machine writes down, while it goes on.

Every line is given once, in order of time as far as both files tell. Where a run goes back to a
checkpoint `metrics.jsonl` is replaced by a part of itself: what of it was given is not given again,
and what is then made again is given as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from spotlight.record.run_events import decode_event
from spotlight.record.run_metrics import IterationMetrics, decode_metrics, further_metrics
from spotlight.trackers import IterationRecord, RunRecords

_AT_ONCE = 1024 * 1024
"""Bytes of a file."""


class RecordFollower:
    """See the module's docstring. It begins behind what the files hold when it is made.

    Args:
        run: the run folder.
        put: given each record.
    """

    def __init__(self, run: Path, put: Callable[[RunRecords], None]) -> None:
        self._files = [
            _Lines(run / "metrics.jsonl", _metrics_record),
            _Lines(run / "events.jsonl", decode_event),
        ]
        self._put = put
        while self._read():
            pass

    def poll(self) -> int:
        """Pass on what was written since, or the beginning of it; returns how many records."""
        records = sorted(self._read(), key=_time_s)
        for record in records:
            self._put(record)
        return len(records)

    def _read(self) -> list[RunRecords]:
        return [record for file in self._files for record in file.new()]


class _Lines:
    """The lines of one file."""

    def __init__(self, path: Path, decode: Callable[[bytes], RunRecords]) -> None:
        self._path = path
        self._decode = decode
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
        lines = [line for line in whole.splitlines() if hash(line) not in self._known]
        self._known.update(map(hash, lines))
        return [record for line in lines for record in self._decoded(line)]

    def _decoded(self, line: bytes) -> list[RunRecords]:
        try:
            return [self._decode(line)]
        except msgspec.MsgspecError:  # a damaged line is the report's to tell
            return []


def _metrics_record(line: bytes) -> RunRecords:
    metrics = decode_metrics(line)
    if isinstance(metrics, IterationMetrics):
        return IterationRecord(metrics, further_metrics(line))
    return metrics


def _time_s(record: RunRecords) -> float:
    return record.metrics.time_s if isinstance(record, IterationRecord) else record.time_s
