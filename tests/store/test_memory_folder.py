"""The memory folder of a node, and what a killed one leaves."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotlight.errors import UserError
from spotlight.store import memory_folder
from spotlight.store.memory_folder import MemoryFolder, remove_leftovers, usable_base


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def owner(base: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with a folder of its own."""
    code = (
        "import sys, pathlib; from spotlight.store.memory_folder import MemoryFolder;"
        "f = MemoryFolder(pathlib.Path(sys.argv[1]));"
        "print(f.path, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(base)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def its_folder(owner: subprocess.Popen[str]) -> Path:
    assert owner.stdout is not None
    return Path(owner.stdout.readline().strip())


def folder(base: Path, name: str) -> Path:
    made = base / name
    made.mkdir()
    (made / "weights").write_bytes(b"1")
    return made


def test_a_folder_is_new_private_and_bears_our_pid(base: Path) -> None:
    first, second = MemoryFolder(base), MemoryFolder(base)
    assert first.path != second.path
    assert first.path.name.startswith(f"spotlight-{os.getpid()}-")
    assert first.path.stat().st_mode & 0o777 == 0o700
    for each in (first, second):
        each.remove()
        assert not each.path.exists()


def test_the_folder_of_a_living_process_stays(base: Path, owner: subprocess.Popen[str]) -> None:
    kept = its_folder(owner)
    remove_leftovers(base)
    assert kept.exists()


def test_the_folder_of_a_killed_process_is_removed_when_the_next_one_starts(
    base: Path, owner: subprocess.Popen[str]
) -> None:
    left = its_folder(owner)
    (left / "weights").write_bytes(b"1")
    owner.kill()
    owner.wait()
    assert left.exists()
    MemoryFolder(base).remove()
    assert not left.exists()


def test_a_folder_of_a_living_process_stays_though_its_pid_says_nothing_here(
    base: Path, owner: subprocess.Popen[str]
) -> None:
    """As in a container that shares memory with its neighbours, but not process ids."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = its_folder(owner)
    elsewhere = kept.rename(base / f"spotlight-{ended.pid}-abc")
    remove_leftovers(base)
    assert elsewhere.exists()


def test_a_folder_whose_pid_is_that_of_another_living_process_is_removed(base: Path) -> None:
    left = [folder(base, f"spotlight-{pid}-abc") for pid in (os.getpid(), os.getppid(), 1)]
    remove_leftovers(base)
    assert not any(path.exists() for path in left)


def test_what_is_not_ours_stays(base: Path) -> None:
    names = ("other-1-a", "spotlight-cache-a", "spotlight--a", "spotlight1")
    kept = [folder(base, name) for name in names]
    (base / "spotlight-1-link").symlink_to(kept[0])
    (base / "spotlight-1-file").write_bytes(b"1")
    remove_leftovers(base)
    assert all((path / "weights").exists() for path in kept)


def test_without_shared_memory_the_temporary_folder_is_used(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(base))
    monkeypatch.setattr(memory_folder, "SHARED_MEMORY", base / "missing")
    made = MemoryFolder()
    assert made.path.parent == base
    made.remove()


def test_a_folder_that_a_user_names_takes_stores_and_is_left_as_it_was(base: Path) -> None:
    (base / "link").symlink_to(base)
    assert usable_base("--store", base / "link") == base.resolve()
    assert usable_base("--store", None) is None
    assert {path.name for path in base.iterdir()} == {"link"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [("missing", "No such file"), ("file", "Not a directory"), ("a\0b", "null byte")],
)
def test_a_folder_that_takes_no_stores_is_one_line_that_names_the_option(
    base: Path, name: str, problem: str
) -> None:
    (base / "file").write_bytes(b"")
    with pytest.raises(UserError, match=rf"^--store .*{problem}.*; name a folder") as error:
        usable_base("--store", base / name)
    assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_written_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:  # root may write everywhere
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(UserError, match=r"^--store .*: Permission denied"):
        usable_base("--store", base)
