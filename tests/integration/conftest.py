"""Real processes on this machine: the commands that a user types, on a job of a few seconds.

Every test checks that no process is left behind, and, as all tests do, nothing in shared memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from spotlight.running.worker_template import VARIABLE
from tests.conftest import OURS, memory_segments
from tests.worker_templates import shared_template

LIMIT_S = 120.0
TEST_LIMIT_S = 240.0
"""A whole run takes seconds where nothing else runs, and minutes where much does."""
SPOTLIGHT = [sys.executable, "-m", "spotlight.cli"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give whole runs their time, where a test does not say how much it takes."""
    for item in items:
        is_here = item.path.is_relative_to(Path(__file__).parent)
        if is_here and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_LIMIT_S))


@dataclass
class Finished:
    """A command that ended."""

    code: int
    output: str
    errors: str


class Workplace:
    """A folder with a small job, and ways to run commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        (folder / "train.txt").write_text(
            "".join(f'the number "{n * 617 % 10000:04d}"\n' for n in range(16))
        )
        (folder / "validation.txt").write_text(
            "".join(f'the number "{n * 911 % 10000 + 3:04d}"\n' for n in range(4))
        )

    def job(self, file: str = "job.yaml", /, **changes: Any) -> Path:
        """A job file; `changes` replace sections, or fields of sections where given as mappings."""
        job: dict[str, Any] = {
            "name": "small",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": "train.txt",
                "validation": "validation.txt",
                "per_iteration": 2,
            },
            "sampler": {"height": 16, "width": 48, "steps": 4, "micro_batch": 4},
            "iterations": 2,
            "group_size": 4,
            "checkpoint_every": 1,
            "training": {"micro_batch": 4, "options": {"times": 2}},
            "exploration": {"budget": "fixed", "candidates": 2},
            "validation": {"seeds": 1, "every": 1},
        }
        for section, value in changes.items():
            if isinstance(value, dict) and isinstance(job.get(section), dict):
                job[section] = {**job[section], **value}
            else:
                job[section] = value
        path = self.folder / file
        path.write_text(yaml.safe_dump(job))
        return path

    def spotlight(self, *arguments: str | Path) -> Finished:
        """Run a command to its end."""
        process = subprocess.Popen(
            [*SPOTLIGHT, *map(str, arguments)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        deadline = time.monotonic() + LIMIT_S
        while True:
            OURS.update(child.pid for child in descendants(process.pid))
            try:
                output, errors = process.communicate(timeout=0.5)
            except subprocess.TimeoutExpired:
                assert time.monotonic() < deadline, f"{arguments} did not end"
            else:
                self.started.remove(process)
                return Finished(process.returncode, output, errors)

    def start(self, *argv: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Start a command; it is ended with the test."""
        process = subprocess.Popen(
            [str(word) for word in argv],
            cwd=self.folder,
            stderr=subprocess.STDOUT,
            text=True,
            **{"stdout": subprocess.PIPE, **options},
        )
        self.started.append(process)
        return process

    def daemon(self, name: str, *arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Start `spotlight-coordinator` or `spotlight-node`."""
        script = Path(__file__).parents[2] / "bin" / f"spotlight-{name}"
        return self.start(sys.executable, script, *arguments, **options)


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Poll until something holds; fail after a limit that only a hang exceeds."""
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)


def events(run: Path, name: str | None = None) -> list[dict[str, Any]]:
    """Events of a run folder that are written so far; the states of workers only by their name."""
    path = run / ("states.jsonl" if name == "worker_state" else "events.jsonl")
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in found if name is None or event["event"] == name]


def metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl of one kind."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def descendants(pid: int) -> list[psutil.Process]:
    """All processes below this one."""
    return psutil.Process(pid).children(recursive=True)


def wait_for_phase(run: Path, phase: str, iteration: int) -> None:
    """Until the run is in this phase of this iteration."""
    wait_until(
        lambda: any(
            event["phase"] == phase and event["iteration"] >= iteration
            for event in events(run, "phase")
        ),
        f"{phase} of iteration {iteration}",
    )


@contextmanager
def open_workplace(folder: Path) -> Iterator[Workplace]:
    """An empty folder with a small job; no daemon asks a real cloud, and all are ended."""
    before = memory_segments()
    place = Workplace(folder)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPOTLIGHT_METADATA_URL", "http://127.0.0.1:9")
        environment.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield place
    for process in reversed(place.started):
        process.terminate()
        process.communicate(timeout=LIMIT_S)
    wait_until(
        lambda: not [p for p in psutil.process_iter(["cmdline"]) if _is_ours(p, folder)],
        "the end of all processes of the test",
    )
    assert memory_segments() <= before


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """One of this test alone."""
    with open_workplace(tmp_path) as place:
        yield place


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Words for a node whose workers need not be processes below it."""
    if address := os.environ.get(VARIABLE):
        yield "--template", address
        return
    with shared_template(tmp_path_factory.mktemp("template")) as address:
        yield "--template", address


@pytest.fixture(scope="module")
def light_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Words for a node whose workers have nothing to do."""
    folder = tmp_path_factory.mktemp("template")
    with shared_template(folder, "tests.workers_without_torch") as address:
        yield "--template", address


def _is_ours(process: psutil.Process, folder: Path) -> bool:
    return str(folder) in " ".join(process.info["cmdline"] or ())
