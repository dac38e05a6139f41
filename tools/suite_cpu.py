"""Measure the processor time of tests: what each file costs, and what they cost together.

Processor time (user and system) is of the process that runs the tests and of the children that it
waited for, so that it says the same on a busy machine as on an idle one, nearly. Prints one JSON
object: `cpu_s` of the whole run with start and collection, `tests`, `failed`, and `files` with
the processor seconds of each file, the most expensive first.

    python tools/suite_cpu.py                        # the fast tests, as `make test` runs them
    python tools/suite_cpu.py -m slow tests/benchmarks
    python tools/suite_cpu.py --tests tests/store    # every test of its own instead of files
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

FAST = ["-m", "not slow"]
PROPERTY = "cpu_s"
TABLE = "SPOTLIGHT_SUITE_CPU"
"""Names the file into which the process that leads the tests writes what it was told."""


def used_s() -> float:
    """Of this process and of all children below it that have ended and were waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Watch:
    """Processor seconds since they were last asked for."""

    def __init__(self) -> None:
        self._last = used_s()

    def lap_s(self) -> float:
        now = used_s()
        passed, self._last = now - self._last, now
        return passed


class Table:
    """What the tests of each file, and each test, cost so far."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()
        self.failed: set[str] = set()

    def add(self, report: pytest.TestReport) -> None:
        seconds = sum(value for name, value in report.user_properties if name == PROPERTY)  # type: ignore[misc]
        self.tests[report.nodeid] += seconds
        self.files[report.nodeid.split("::")[0]] += seconds
        if report.failed:
            self.failed.add(report.nodeid)

    def as_record(self) -> dict[str, Any]:
        return {
            "tests": len(self.tests),
            "failed": sorted(self.failed),
            "files": _rounded(self.files),
            "by_test": _rounded(self.tests),
        }


WATCH = Watch()
COSTS = Table()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    WATCH.lap_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Called after a test's set-up, the test, and its tear-down."""
    report = yield
    report.user_properties = [(PROPERTY, WATCH.lap_s())]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    COSTS.add(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        Path(os.environ[TABLE]).write_text(json.dumps(COSTS.as_record()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tests", action="store_true", help="print every test instead of files")
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.json"
        environment = {**os.environ, TABLE: str(table), "PYTHONPATH": os.pathsep.join(_paths())}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "suite_cpu", *(arguments or FAST)]
        watch = Watch()
        ended = subprocess.run(command, env=environment, stdout=sys.stderr)
        record = {"cpu_s": round(watch.lap_s(), 1), **json.loads(table.read_text())}
    record.pop("files" if options.tests else "by_test")
    sys.stdout.write(json.dumps(record, indent=1) + "\n")
    return ended.returncode


def _paths() -> Iterator[str]:
    yield str(Path(__file__).parent)
    yield str(Path.cwd())
    if "PYTHONPATH" in os.environ:
        yield os.environ["PYTHONPATH"]


def _rounded(seconds: Counter[str]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in seconds.most_common()}


if __name__ == "__main__":
    sys.exit(main())
