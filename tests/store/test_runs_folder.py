"""The folder of a coordinator's runs is one coordinator's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spotlight.errors import RunFolderError
from spotlight.store.runs_folder import RunsFolder, locked

HOLDER = """
import sys, time
from pathlib import Path
from spotlight.store.runs_folder import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_a_second_holder_is_refused_with_the_folder_and_the_process(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(RunFolderError) as refused, locked(tmp_path):
        pytest.fail("two have it")
    assert str(tmp_path) in str(refused.value) and f"process {os.getpid()}" in str(refused.value)
    assert refused.value.exit_code == 2
    with locked(tmp_path):
        pass


def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(RunFolderError, match=f"process {holder.pid}"), locked(tmp_path):
            pytest.fail("two have it")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with locked(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / ".coordinator").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="--runs"), locked(runs):
        pytest.fail("it was followed")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("/elsewhere/run", "is not below"),
        ("../run", "is not below"),
        (".", "is not below"),
        ("a/../..", "is not below"),
        ("link/run", "is not below"),
        (".running", "the name of a file of the coordinator"),
        ("queue.records", "the name of a file of the coordinator"),
        ("queue.records.part/run", "the name of a file of the coordinator"),
        (".coordinator/run", "the name of a file of the coordinator"),
        ("there/artifacts.d/run", "inside of another run"),
        ("a\0b", "control characters"),
    ],
)
def test_a_run_has_a_place_of_its_own_below_the_folder(
    tmp_path: Path, wanted: str, problem: str
) -> None:
    runs = tmp_path / "runs"
    (runs / "there").mkdir(parents=True)
    (runs / "there" / "config.yaml").touch()
    (runs / "link").symlink_to(tmp_path)
    with pytest.raises(RunFolderError, match="run folder.*" + problem):
        RunsFolder(runs).place("job", wanted)


def test_a_place_may_be_left_open_named_or_named_by_whoever_started_the_coordinator(
    tmp_path: Path,
) -> None:
    runs, beside = RunsFolder(tmp_path / "runs", tmp_path / "run"), tmp_path / "run"
    assert runs.place("job", "") == tmp_path / "runs" / "job-001"
    assert runs.place("job", "mine/too") == tmp_path / "runs" / "mine" / "too"
    assert runs.place("job", str(tmp_path / "runs" / "mine")) == tmp_path / "runs" / "mine"
    assert runs.place("job", str(beside)) == beside
    with pytest.raises(RunFolderError, match="is not below"):
        runs.place("job", str(beside / "inner"))
