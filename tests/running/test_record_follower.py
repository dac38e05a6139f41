"""What a run writes down is read once, in order, however the files change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotlight.record.run_events import PhaseBegan
from spotlight.record.run_metrics import ValidationMetrics
from spotlight.running.record_follower import RecordFollower
from spotlight.store.record_files import set_newest_aside
from spotlight.store.run_folder import replace_file
from spotlight.trackers import IterationRecord, RunRecords


class Run:
    """A run folder, and what was read of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read: list[RunRecords] = []
        self.follower = RecordFollower(path, self.read.append)

    def write(self, file: str, *lines: dict[str, Any]) -> None:
        with open(self.path / file, "ab") as target:
            for line in lines:
                target.write(json.dumps(line).encode() + b"\n")

    def polled(self) -> list[object]:
        """Iterations, scores and phases that are new."""
        self.read.clear()
        self.follower.poll()
        return [
            (record.metrics.iteration, dict(record.loss))
            if isinstance(record, IterationRecord)
            else record.score
            if isinstance(record, ValidationMetrics)
            else record.phase
            if isinstance(record, PhaseBegan)
            else None
            for record in self.read
        ]


def iteration(number: int, time_s: float, **others: float) -> dict[str, Any]:
    return {"kind": "iteration", "iteration": number, "time_s": time_s, **others}


def phase(name: str, time_s: float) -> dict[str, Any]:
    return {"event": "phase", "phase": name, "time_s": time_s}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_lines_of_both_files_come_once_in_order_of_time(run: Run) -> None:
    assert run.polled() == []
    run.write("events.jsonl", phase("rollout", 1.0), phase("train", 3.0))
    run.write(
        "metrics.jsonl",
        {"kind": "validation", "weights_version": 0, "score": 0.5, "time_s": 2.0},
        iteration(0, 4.0, loss=0.1, kl=0.2),
    )
    assert run.polled() == ["rollout", 0.5, "train", (0, {"kl": 0.2})]
    assert run.polled() == []


def test_a_line_that_is_not_whole_waits(run: Run) -> None:
    line = json.dumps(phase("rollout", 1.0)).encode() + b"\n"
    with open(run.path / "events.jsonl", "wb", buffering=0) as file:
        file.write(line[:20])
        assert run.polled() == []
        file.write(line[20:])
        assert run.polled() == ["rollout"]


def test_what_was_there_before_is_not_given(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps(phase("rollout", 1.0)) + "\n")
    run = Run(tmp_path)
    run.write("events.jsonl", phase("train", 2.0))
    assert run.polled() == ["train"]


def test_events_that_are_set_aside_between_two_looks_are_given_once(run: Run) -> None:
    run.write("events.jsonl", phase("rollout", 1.0))
    assert run.polled() == ["rollout"]
    run.write("events.jsonl", phase("train", 2.0))
    set_newest_aside(run.path)
    run.write("events.jsonl", phase("publish", 3.0))
    assert run.polled() == ["train", "publish"]
    assert run.polled() == []


def state(worker: str, name: str, time_s: float, **others: Any) -> dict[str, Any]:
    return {"event": "worker_state", "worker": worker, "state": name, "time_s": time_s, **others}


def test_states_of_workers_are_given_once_when_their_file_is_set_aside(run: Run) -> None:
    run.write("states.jsonl", state("a", "idle", 1.0))
    assert run.polled() == [None]
    run.write("states.jsonl", state("a", "rollout", 2.0))
    (run.path / "states.jsonl").rename(run.path / "states-older.jsonl")
    run.write("states.jsonl", state("a", "rollout", 3.0, again=True), state("b", "idle", 3.5))
    told = [run.polled() and [record.time_s for record in run.read] for _ in range(3)]
    assert told == [[2.0], [3.5], []]


def test_after_a_run_went_back_only_what_is_made_again_is_given(run: Run) -> None:
    first = [iteration(number, number + 1.0) for number in range(3)]
    run.write("metrics.jsonl", *first)
    assert len(run.polled()) == 3
    kept = json.dumps(first[0]).encode() + b"\n"
    replace_file(run.path / "metrics.jsonl", kept)
    run.write("metrics.jsonl", iteration(1, 9.0))
    assert run.polled() == [(1, {})]
    assert run.polled() == []


def test_a_line_that_cannot_be_read_is_passed_over(run: Run) -> None:
    run.write("events.jsonl", {"event": "telepathy", "time_s": 1.0}, phase("train", 2.0))
    assert run.polled() == ["train"]
