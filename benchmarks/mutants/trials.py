"""Who notices a mutant: the tests that are nearest, and the seeds of `spotlight chaos`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec

from benchmarks.mutants.mutant import Mutant, environment, python
from benchmarks.mutants.seeds import SeedRun

_TESTS_LIMIT_S = 900.0
_SEEDS_LIMIT_S = 7200.0
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Row(msgspec.Struct, frozen=True):
    """What came of a mutant."""

    mutant: str
    test: str
    """The first that failed; empty if none did."""
    seed: int | None
    """The first that a check did not pass."""
    seeds: int
    """So many were run."""
    violation: str
    """What the check said."""
    chaos_s: float
    """Processor time that the seeds took."""


def tried(mutant: Mutant, root: Path, seeds: int) -> Row:
    """Run both on the copy at `root`, which is the mutant."""
    test = _first_failure(mutant, root)
    seen = _seeds(root, seeds)
    last = seen[-1]
    seed = last.seed if last.wrong else None
    return Row(mutant.name, test, seed, len(seen), last.wrong, last.used_s)


def _first_failure(mutant: Mutant, root: Path) -> str:
    options = ("-x", "-q", "-p", "no:cacheprovider")
    done = subprocess.run(
        python("-m", "pytest", *options, *mutant.tests),
        cwd=root,
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=_TESTS_LIMIT_S,
        check=False,
    )
    if done.returncode == 0:
        return ""
    failed = _FAILED.search(done.stdout)
    if done.returncode != 1 or failed is None:  # that is no failure of a test
        raise RuntimeError(f"{mutant.name}: its tests cannot be run: {done.stdout[-2000:]}")
    return failed[1]


def _seeds(root: Path, count: int) -> list[SeedRun]:
    done = subprocess.run(
        python("-m", "benchmarks.mutants.seeds", str(count)),
        cwd=root,
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=_SEEDS_LIMIT_S,
        check=False,
    )
    if done.returncode or not done.stdout:
        raise RuntimeError(f"the seeds cannot be run: {done.stderr[-2000:]}")
    return [msgspec.json.decode(line, type=SeedRun) for line in done.stdout.splitlines()]
