"""The states of workers are kept for an hour or two, and each file can be read alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotlight.record.run_events import WorkerStateBegan
from spotlight.store import states_file
from spotlight.store.record_files import OLDER_STATES, STATES, whole_state_lines
from spotlight.store.states_file import StatesFile
from spotlight.types import WorkerState

KEPT_S = 3600.0


def began(worker: str, state: WorkerState, scoring_s: float = 0.0) -> WorkerStateBegan:
    return WorkerStateBegan(worker=worker, node="n", pool="spot", state=state, scoring_s=scoring_s)


def lines(path: Path) -> list[tuple[Any, ...]]:
    """(time, date, worker, state, whether it is said once more)."""
    return [
        (told["time_s"], told.get("at"), told["worker"], told["state"], told.get("again", False))
        for told in map(json.loads, path.read_bytes().splitlines())
    ]


def test_states_are_lines_with_run_time_and_date(tmp_path: Path) -> None:
    states = StatesFile(tmp_path, KEPT_S)
    states.append(began("a", "starting"), 1.0, 101.0)
    states.append(began("a", "idle"), 2.5, None)
    states.close()
    assert lines(tmp_path / STATES) == [
        (1.0, 101.0, "a", "starting", False),
        (2.5, None, "a", "idle", False),
    ]


def test_after_an_hour_another_file_begins_with_the_states_that_workers_are_in(
    tmp_path: Path,
) -> None:
    states = StatesFile(tmp_path, KEPT_S)
    states.append(began("a", "rollout", scoring_s=3.0), 100.0, 100.0)
    states.append(began("b", "idle"), 200.0, 200.0)
    states.append(began("b", "gone"), 300.0, 300.0)
    states.append(began("c", "idle"), KEPT_S + 100.0, 9000.0)
    states.close()
    assert [line[2] for line in lines(tmp_path / OLDER_STATES)] == ["a", "b", "b"]
    assert lines(tmp_path / STATES) == [
        (KEPT_S + 100.0, 9000.0, "a", "rollout", True),
        (KEPT_S + 100.0, 9000.0, "c", "idle", False),
    ]
    told = [json.loads(line).get("scoring_s", 0.0) for line in whole_state_lines(tmp_path)]
    assert sum(told) == 3.0, "what a worker scored is said once"


def test_the_last_hour_is_always_there_and_no_more_than_two(tmp_path: Path) -> None:
    states = StatesFile(tmp_path, KEPT_S)
    for minute in range(600):
        states.append(began("a", "idle" if minute % 2 else "rollout"), 60.0 * minute, None)
        first = json.loads(next(whole_state_lines(tmp_path)))["time_s"]
        assert min(KEPT_S, 60.0 * minute) <= 60.0 * minute - first <= 2 * KEPT_S
    states.close()


def test_very_many_workers_have_less_than_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states_file, "LARGEST", 5000)
    states = StatesFile(tmp_path, KEPT_S)
    for second in range(1000):
        states.append(began(f"w{second % 7}", "idle"), float(second), None)
    states.close()
    sizes = [path.stat().st_size for path in (tmp_path / STATES, tmp_path / OLDER_STATES)]
    assert all(size < 5200 for size in sizes)


def test_a_torn_line_is_dropped_when_the_run_goes_on(tmp_path: Path) -> None:
    states = StatesFile(tmp_path, KEPT_S)
    states.append(began("a", "idle"), 1.0, None)
    states.close()
    with open(tmp_path / STATES, "ab") as file:
        file.write(b'{"time_s": 2.0, "ev')
    again = StatesFile(tmp_path, KEPT_S)
    again.append(began("a", "starting"), KEPT_S, None)
    again.close()
    assert [line[3] for line in lines(tmp_path / STATES)] == ["idle", "starting"]


def test_the_hour_of_a_run_that_goes_on_began_with_its_file(tmp_path: Path) -> None:
    states = StatesFile(tmp_path, KEPT_S)
    states.append(began("a", "rollout"), 1.0, None)
    states.close()
    again = StatesFile(tmp_path, KEPT_S)
    again.append(began("a", "starting"), KEPT_S + 2.0, None)
    again.close()
    assert [line[3] for line in lines(tmp_path / OLDER_STATES)] == ["rollout"]
    assert lines(tmp_path / STATES) == [(KEPT_S + 2.0, None, "a", "starting", False)]


@pytest.mark.parametrize("text", [b"", b"\n", b"7\n", b'{"time_s": "soon"}\n', b"\xff\n"])
def test_a_file_whose_first_line_says_nothing_is_gone_on_with(tmp_path: Path, text: bytes) -> None:
    (tmp_path / STATES).write_bytes(text)
    states = StatesFile(tmp_path, KEPT_S)
    states.append(began("a", "idle"), 1.0, None)
    states.close()
    assert (tmp_path / STATES).read_bytes().startswith(text)
