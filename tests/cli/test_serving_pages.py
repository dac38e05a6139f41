"""Processes that serve the page: a dashboard, and a coordinator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.web.page_kit import WrittenRun

BIN = Path(__file__).parents[2] / "bin"


@contextmanager
def process(*words: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        assert started.stdout is not None
        started.stdout.close()


def asked(url: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.status, answer.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_dashboard_shows_a_run_until_it_is_told_to_end(
    tmp_path: Path, number: signal.Signals
) -> None:
    run = WrittenRun(tmp_path / "runs" / "a")
    WrittenRun(tmp_path / "runs" / "b")
    with process("-m", "spotlight", "dashboard", str(run.folder)) as dashboard:
        assert dashboard.stdout is not None
        link = dashboard.stdout.readline().strip()
        assert link.endswith("/?run=a")
        shown = json.loads(asked(link.partition("?")[0] + "api/runs")[1])
        assert [each["name"] for each in shown] == ["a"]
        dashboard.send_signal(number)
        assert dashboard.wait(20) == 0


def test_a_coordinator_serves_the_page_of_its_runs(tmp_path: Path) -> None:
    WrittenRun(tmp_path / "runs" / "a")
    words = "--listen", "127.0.0.1:0", "--runs", str(tmp_path / "runs"), "--web", "127.0.0.1:0"
    with process(str(BIN / "spotlight-coordinator"), *words, env=dict(os.environ)) as coordinator:
        assert coordinator.stdout is not None
        said = (json.loads(line) for line in coordinator.stdout)
        url = next(line["url"] for line in said if line["event"] == "page_serves")
        assert any(line["event"] == "coordinator_listens" for line in said)
        assert asked(f"{url}healthz") == (200, b"ok\n")
        assert [each["name"] for each in json.loads(asked(f"{url}api/runs")[1])] == ["a"]
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(20) == 0


def test_a_coordinator_whose_page_cannot_be_there_says_so_and_does_not_start(
    tmp_path: Path,
) -> None:
    words = "--listen", "127.0.0.1:0", "--runs", str(tmp_path), "--web", "192.0.2.1:80"
    with process(str(BIN / "spotlight-coordinator"), *words) as coordinator:
        assert coordinator.wait(20) == 2
        assert coordinator.stdout is not None
        assert "--web 192.0.2.1:80: " in coordinator.stdout.read()
