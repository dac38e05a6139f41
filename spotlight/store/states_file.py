"""The states of workers as they began: the latest of a run in `states.jsonl`, those before them in
`states-older.jsonl`, and none that are older still. So the two have at least the last hour, or what
fits into so many bytes where there are very many workers; the time that workers spent in all is in
the ledger and the roll-ups.

Each file can be read without the other: another begins with the states that workers are in.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from spotlight.record.run_events import WorkerStateBegan, encode_event
from spotlight.store.record_files import OLDER_STATES, STATES, LineFile, drop_torn_line

LARGEST = 32 << 20
"""Bytes with which another file begins, whatever the time is."""


class StatesFile:
    """Appends to it. Raises `OSError`.

    Args:
        kept_s: seconds after which another file begins.
    """

    def __init__(self, run: Path, kept_s: float) -> None:
        self.kept_s = kept_s
        self._run = run
        drop_torn_line(run / STATES)
        self._file = LineFile(run / STATES)
        self._begun_s = _first_time_s(run / STATES)
        self._states: dict[str, WorkerStateBegan] = {}
        """The latest of each worker that is there; nobody is when a run goes on."""

    def append(self, event: WorkerStateBegan, time_s: float, at: float | None) -> None:
        """A worker is in this state from now on."""
        if self._begun_s is None:
            self._begun_s = time_s
        elif time_s - self._begun_s >= self.kept_s or self._file.nbytes >= LARGEST:
            self._begin_another(time_s, at)
        self._states.pop(event.worker, None)
        if event.state != "gone":
            self._states[event.worker] = event
        self._file.append(encode_event(event, time_s, at))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _begin_another(self, time_s: float, at: float | None) -> None:
        self._file.close()
        os.replace(self._run / STATES, self._run / OLDER_STATES)
        self._file = LineFile(self._run / STATES)
        self._begun_s = time_s
        for known in self._states.values():
            again = msgspec.structs.replace(known, again=True, scoring_s=0.0)
            self._file.append(encode_event(again, time_s, at))


def _first_time_s(path: Path) -> float | None:
    """When the first state of a file began; None if there is none that can be read."""
    with open(path, "rb") as file:
        line = file.readline()
    try:
        told: Any = json.loads(line)
        return float(told["time_s"])
    except (ValueError, TypeError, LookupError):
        return None
