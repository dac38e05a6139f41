"""One run folder, followed while somebody looks: what was written since is read a piece at a time,
and makes the next view.

All calls are made in one thread at a time. A folder that is torn, of an older version, or that goes
away while it is looked at is still shown, as far as it can be read, with a note that says so.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from spotlight.errors import RunFolderError
from spotlight.record.ledger import Ledger, RollupLine
from spotlight.report.run_view import MOST_BUCKETS, MOST_LANES, RunView
from spotlight.report.view_building import ViewBuilder
from spotlight.running.record_follower import RecordFollower
from spotlight.store import ledger_file
from spotlight.store.rollups import FOLDER, RollupReader, each_rollup
from spotlight.store.run_folder import read_config
from spotlight.trackers import RunRecords
from spotlight.trackers.callback import deliver

_OLD_S = 30.0
"""A view is made anew after so long though nothing was written: nobody may work on the run by
now."""
_WRITTEN = ("metrics.jsonl", "events.jsonl", "config.yaml", ledger_file.NAME)
Stamp = tuple[int, int, int]


class _ReadAnew(Exception):
    """What was read of the run does not hold any more, as after a crash of who wrote it."""


class WatchedRun:
    """See the module's docstring.

    Args:
        clock: the wall clock, seconds.

    Raises `RunFolderError` if it has no job that can be read.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._rollups: RollupReader | None = None
        self._viewed_at = -math.inf
        self._begin()

    def catch_up(self, limit_s: float) -> bool:
        """Read what was written since, for so long at most; whether there may be another view."""
        until, found = time.monotonic() + limit_s, False
        while self._records.poll():
            found = True
            if time.monotonic() > until:
                return True
        try:
            found = self._read_ledger() or found
        except _ReadAnew:
            self._begin()
            found = True
        return found or time.monotonic() - self._viewed_at >= _OLD_S

    def view(self) -> RunView:
        """What is shown of it now."""
        self._viewed_at = time.monotonic()
        for name in _WRITTEN:
            if (stamp := _stamp(self.folder / name)) is not None:
                self._builder.written_at(stamp[2] / 1e9)
        return self._builder.view(self._clock())

    def close(self) -> None:
        """Close what is open."""
        if self._rollups is not None:
            self._rollups.close()
            self._rollups = None

    def _begin(self) -> None:
        self.close()
        self._builder = ViewBuilder(read_config(self.folder), self.folder)
        self._records = RecordFollower(self.folder, self._add, from_start=True)
        self._ledger: Stamp | None = None

    def _add(self, record: RunRecords) -> None:
        deliver(record, self._builder)

    def _read_ledger(self) -> bool:
        """The ledger, and the roll-ups that it accounts for; whether it is another one."""
        stamp = _stamp(self.folder / ledger_file.NAME)
        if stamp == self._ledger:
            return False
        self._ledger = stamp
        try:
            ledger = ledger_file.read_ledger(self.folder)
            self._builder.ledger(ledger)
            for line in self._new_rollups(ledger):
                self._builder.rollup(line)
        except RunFolderError as error:
            self._builder.note(str(error))
        return True

    def _new_rollups(self, ledger: Ledger) -> Iterable[RollupLine]:
        if self._rollups is None:
            folder, until = self.folder / FOLDER, ledger.number
            self._rollups = RollupReader(folder, until)
            workers = sum(len(bill.times) for bill in ledger.bills)
            most = MOST_BUCKETS if workers <= MOST_LANES else MOST_BUCKETS // 2
            return each_rollup(folder, 0.0, math.inf, most, until=until)
        lines = self._rollups.read()
        if lines is None:
            raise _ReadAnew
        return lines


def _stamp(path: Path) -> Stamp | None:
    """It is another one when the file is."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
