"""Runs as people name them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotlight.running.run_names import find_run
from tests.small_run import write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs, the second of `signs` written to last but for `other`."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for age, name in enumerate(("other-001", "signs-002", "signs-001", "signs-more-001")):
        config = write_run(folder / name) / "config.yaml"
        os.utime(config, (1e9 - age, 1e9 - age))
    (folder / "operator.token").touch()
    return folder


def test_a_path_is_itself_wherever_it_is(runs: Path, tmp_path: Path) -> None:
    elsewhere = write_run(tmp_path / "elsewhere")
    assert find_run(str(elsewhere), runs) == elsewhere


def test_the_name_of_a_folder_is_below_runs(runs: Path) -> None:
    assert find_run("signs-001", runs) == runs / "signs-001"


def test_the_name_of_a_job_is_its_newest_run(runs: Path) -> None:
    assert find_run("signs", runs) == runs / "signs-002"


def test_the_last_run_is_that_which_was_written_to_last(runs: Path) -> None:
    assert find_run("last", runs) == runs / "other-001"
    events = runs / "signs-001" / "events.jsonl"
    events.touch()
    assert find_run("last", runs) == runs / "signs-001"


@pytest.mark.parametrize("name", ["unknown", "sign", "operator.token", "signs.001", ""])
def test_what_is_no_run_is_none(runs: Path, name: str) -> None:
    assert find_run(name, runs) is None


def test_without_a_folder_of_runs_there_is_no_last_one(tmp_path: Path) -> None:
    assert find_run("last", tmp_path / "runs") is None
