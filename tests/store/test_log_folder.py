"""The folder of a node's logs: it outlives the node, and old ones are removed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotlight.store.log_folder import KEPT, bound, log_base

CODE = (
    "import sys, pathlib; from spotlight.store.log_folder import new_log_folder;"
    "print(new_log_folder(pathlib.Path(sys.argv[1]), 'node'), flush=True);"
    "sys.stdin.read()"
)


def node(base: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder, until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(base)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_logs_stay_when_their_node_is_killed(tmp_path: Path) -> None:
    process, folder = node(tmp_path)
    (folder / "node-0.log").write_text("why it ended\n")
    process.kill()
    process.communicate()
    another, _ = node(tmp_path)
    another.communicate()
    assert (folder / "node-0.log").read_text() == "why it ended\n"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_only_the_newest_folders_of_ended_nodes_are_kept_and_those_of_living_ones(
    tmp_path: Path,
) -> None:
    living, oldest = node(tmp_path)
    ended = [tmp_path / f"node-{number}" for number in range(KEPT + 3)]
    for age, folder in enumerate(ended, start=10):
        folder.mkdir()
        (folder / "node-0.log").write_text("\n")
        os.utime(folder, (1e9 - age, 1e9 - age))
    os.utime(oldest, (1.0, 1.0))
    another, newest = node(tmp_path)
    for process in (living, another):
        process.communicate()
    assert {*tmp_path.iterdir()} == {oldest, newest, *ended[:KEPT]}


def test_a_log_that_is_large_is_set_aside_while_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "node-0.log"
    with open(log, "ab", buffering=0) as file:  # as workers have it
        for number in range(40):
            file.write(b"line %02d of ten bytes\n" % number)
            bound([log, tmp_path / "of-a-worker-that-never-started.log"], largest=100)
        file.write(b"the last\n")
    before = log.with_name("node-0.log.1")
    assert log.read_text().endswith("the last\n")
    assert log.stat().st_size < 200 and before.stat().st_size < 200
    assert len({*tmp_path.iterdir()}) == 2
    assert "line 3" in before.read_text() + log.read_text()


def test_on_a_full_disk_a_large_log_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    log = tmp_path / "node-0.log"
    log.write_text("x" * 200)
    bound([log], largest=100)
    assert log.stat().st_size == 0


def test_logs_are_in_the_state_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert log_base() == tmp_path / "state" / "spotlight" / "logs"
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert log_base() == tmp_path / ".local" / "state" / "spotlight" / "logs"
