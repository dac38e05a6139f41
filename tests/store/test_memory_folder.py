"""The memory folder of a node, and what a killed one leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotlight.store import memory_folder
from spotlight.store.memory_folder import create_memory_folder, remove_leftovers


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory_folder, "_SHARED_MEMORY", tmp_path)
    return tmp_path


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def folder(base: Path, name: str) -> Path:
    made = base / name
    made.mkdir()
    (made / "weights").write_bytes(b"1")
    return made


def test_a_folder_is_new_private_and_bears_our_pid(base: Path) -> None:
    first, second = create_memory_folder(), create_memory_folder()
    assert first != second
    assert first.name.startswith(f"spotlight-{os.getpid()}-")
    assert first.stat().st_mode & 0o777 == 0o700


def test_leftovers_of_dead_processes_are_removed(base: Path, dead_pid: int) -> None:
    left = folder(base, f"spotlight-{dead_pid}-abc")
    create_memory_folder()
    assert not left.exists()


def test_folders_of_living_processes_stay(base: Path) -> None:
    kept = [folder(base, f"spotlight-{pid}-abc") for pid in (os.getpid(), os.getppid(), 1)]
    remove_leftovers()
    assert all((path / "weights").exists() for path in kept)


def test_what_is_not_ours_stays(base: Path, dead_pid: int) -> None:
    names = (f"other-{dead_pid}-a", "spotlight-cache-a", "spotlight--a", f"spotlight{dead_pid}")
    kept = [folder(base, name) for name in names]
    remove_leftovers()
    assert all(path.exists() for path in kept)


def test_without_shared_memory_the_temporary_folder_is_used(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_folder, "_SHARED_MEMORY", base / "missing")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(base))
    assert create_memory_folder().parent == base
