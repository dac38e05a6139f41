"""Who notices a mutant: the tests, and the seeds of `spotlight chaos`.

A test notices it if it fails on the mutant, and passes on the package as it is. Tests that do not
end have noticed it, too.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from benchmarks.mutants.mutant import Mutant, applied
from benchmarks.mutants.seeds import SeedRun

_LIMIT_S = 7200.0
_TESTS_CPU_LIMIT_S = 300
"""Tests that use more do not end: those of a room take a minute or two. A callback that goes on for
ever swallows what pytest raises when a test takes too long."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\[\s]+)", re.MULTILINE)
_ALL_PASSED, _SOME_FAILED, _NONE_SELECTED = 0, 1, 5


class _Endless(Exception):
    """Tests have used up their processor time."""


class Row(msgspec.Struct, frozen=True):
    """What came of a mutant."""

    mutant: str
    found_by: str
    """The first test that noticed it; empty if none did."""
    seconds: float
    """How long its tests ran, up to that one."""
    cpu_seconds: float
    """The processor time that they took."""
    seed: int | None = None
    """The first seed that a check did not pass."""
    seeds: int = 0
    """How many seeds were run."""
    violation: str = ""
    """What the check said."""
    chaos_cpu_seconds: float = 0.0
    """The processor time that the seeds took."""


def tried(mutant: Mutant, root: Path, seeds: int) -> Row:
    """Run the tests of a mutant on the copy of the repository at `root`: first its own, then all
    fast ones of its room. Then run the seeds of `spotlight chaos`, at most so many."""
    began, used = time.monotonic(), _processor_s()
    test = _noticed(mutant, root, mutant.tests) or _noticed(mutant, root, (mutant.room,))
    row = Row(
        mutant=mutant.name,
        found_by=test,
        seconds=round(time.monotonic() - began, 1),
        cpu_seconds=round(_processor_s() - used, 1),
    )
    if not seeds:
        return row
    with applied(mutant, root):
        seen = _seeds(root, seeds)
    last = seen[-1]
    return msgspec.structs.replace(
        row,
        seed=last.seed if last.wrong else None,
        seeds=len(seen),
        violation=last.wrong,
        chaos_cpu_seconds=last.used_s,
    )


def _noticed(mutant: Mutant, root: Path, places: Iterable[str]) -> str:
    """The first test in these files or folders that notices the mutant; empty if none does."""
    there = [place for place in places if (root / place).exists()]
    passed_over: list[str] = []
    while there:
        try:
            with applied(mutant, root):
                test = _first_failure(root, there, passed_over)
        except _Endless:
            return f"{' '.join(there)}, which does not end"
        if not test or not _first_failure(root, [test], ()):
            return test
        passed_over.append(test)  # it fails anyway
    return ""


def _first_failure(root: Path, places: Iterable[str], passed_over: Iterable[str]) -> str:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--tb=no"]
    options += [f"--deselect={test}" for test in passed_over]
    code, output = _run(root, _TESTS_CPU_LIMIT_S, "pytest", *options, *places)
    if code == -signal.SIGXCPU:
        raise _Endless
    if code in (_ALL_PASSED, _NONE_SELECTED):
        return ""
    failed = _FAILED.search(output)
    if code != _SOME_FAILED or failed is None:  # that is no failure of a test
        raise RuntimeError(f"the tests cannot be run: {output[-2000:]}")
    return failed[1]


def _seeds(root: Path, count: int) -> list[SeedRun]:
    unlimited = resource.RLIM_INFINITY  # each seed has a limit of its own
    code, output = _run(root, unlimited, "benchmarks.mutants.seeds", str(count))
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if code or not lines:
        raise RuntimeError(f"the seeds cannot be run: {output[-2000:]}")
    return [msgspec.json.decode(line, type=SeedRun) for line in lines]


def _run(root: Path, cpu_limit_s: int, module: str, *arguments: str) -> tuple[int, str]:
    """Run a module of the copy; what it leaves in temporary folders goes with the copy. Returns its
    exit code and what it printed. Raises `TimeoutExpired`."""
    temporary = root.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    process = subprocess.Popen(
        (sys.executable, "-m", module, *arguments),
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_limit_s, resource.RLIM_INFINITY))
        output, _ = process.communicate(timeout=_LIMIT_S)
    finally:
        if process.poll() is None:  # its processes as well
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, output


def _processor_s() -> float:
    """The processor time of all processes that this one has waited for, so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
