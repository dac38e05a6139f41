"""Processor time of the fast tests, here and in another commit, in turns on one machine."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from benchmarks.house.source import ROOT

FAST = ("-m", "not slow", "--numprocesses", "2", "--dist", "loadfile")
"""The options of `make test`."""
_LIMIT_S = 7200.0


class SuiteFailed(Exception):
    """The tests do not pass, so their time says nothing."""


def cpu_seconds_in_turns(before: str, rounds: int) -> tuple[list[float], list[float]]:
    """Of every round: the processor seconds of the tests here, and of those of the commit.

    Raises `SuiteFailed`.
    """
    here: list[float] = []
    there: list[float] = []
    with tempfile.TemporaryDirectory(prefix="spotlight-suite-") as scratch:
        other = Path(scratch)
        _check_out(before, other)
        for _ in range(rounds):
            here.append(_cpu_seconds(ROOT))
            there.append(_cpu_seconds(other))
    return here, there


def _check_out(commit: str, folder: Path) -> None:
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True, timeout=60
    ).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    if (ROOT / ".venv").exists():
        (folder / ".venv").symlink_to((ROOT / ".venv").resolve())  # tests start its programs


def _cpu_seconds(root: Path) -> float:
    """Of pytest and of everything that it started and waited for."""
    before = _used_by_children()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FAST],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise SuiteFailed(f"{root}: {done.stdout[-2000:]}")
    return _used_by_children() - before


def _used_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
