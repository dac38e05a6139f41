"""What a run has written down is read in order of time from its beginning on, also where one file
is much longer than the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spotlight.record.run_events import WorkerStateBegan
from spotlight.running import record_follower
from spotlight.running.record_follower import RecordFollower
from spotlight.store.record_files import OLDER_STATES, STATES
from spotlight.trackers import IterationRecord, RunRecords

PADDING = "x" * 2000


def write(path: Path, *lines: dict[str, Any]) -> None:
    with open(path, "ab") as file:
        for line in lines:
            file.write(json.dumps(line).encode() + b"\n")


def read_all(run: Path) -> list[RunRecords]:
    read: list[RunRecords] = []
    follower = RecordFollower(run, read.append, from_start=True)
    while follower.poll():
        pass
    return read


def time_of(record: RunRecords) -> float:
    return record.metrics.time_s if isinstance(record, IterationRecord) else record.time_s


def state(time_s: float, state: str = "idle", **more: Any) -> dict[str, Any]:
    worker = {"worker": "spot-0/0", "node": "spot-0", "pool": "spot"}
    return {"event": "worker_state", "time_s": time_s, "state": state, **worker, **more}


def test_many_events_and_few_metrics_come_in_order(tmp_path: Path) -> None:
    begun = {"event": "run_started", "job": "a", "time_s": 0.0}
    phases = [
        {"event": "phase", "phase": "train", "time_s": float(at), "padding": PADDING}
        for at in range(1500)
    ]
    write(tmp_path / "events.jsonl", begun, *phases)
    write(
        tmp_path / "metrics.jsonl",
        *({"kind": "iteration", "iteration": n, "time_s": n * 150 + 0.5} for n in range(10)),
    )
    read = read_all(tmp_path)
    times = [time_of(record) for record in read]
    assert times == sorted(times)
    assert sum(isinstance(record, IterationRecord) for record in read) == 10


def test_what_is_written_later_comes_at_once(tmp_path: Path) -> None:
    read: list[RunRecords] = []
    follower = RecordFollower(tmp_path, read.append, from_start=True)
    write(tmp_path / "metrics.jsonl", {"kind": "iteration", "iteration": 0, "time_s": 9.0})
    write(tmp_path / "events.jsonl", {"event": "phase", "phase": "train", "time_s": 1.0})
    assert follower.poll() == 2
    write(tmp_path / "events.jsonl", {"event": "phase", "phase": "publish", "time_s": 2.0})
    assert follower.poll() == 1


def test_states_begin_with_the_older_file(tmp_path: Path) -> None:
    write(tmp_path / OLDER_STATES, state(1.0), state(2.0, "rollout"))
    write(tmp_path / STATES, state(3.0, "rollout", again=True), state(4.0))
    read = [record for record in read_all(tmp_path) if isinstance(record, WorkerStateBegan)]
    assert [record.time_s for record in read] == [1.0, 2.0, 4.0]


def test_of_very_many_states_the_latest_are_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(record_follower, "STATES_BEFORE", 1000)
    write(tmp_path / STATES, *(state(float(at)) for at in range(100)))
    read = read_all(tmp_path)
    assert 2 < len(read) < 20
    assert time_of(read[-1]) == 99.0
