"""`spotlight doctor`: what it prints, and what a program learns by the exit code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from spotlight import __version__
from spotlight.cli.doctor import findings_table
from spotlight.preflight import machine
from spotlight.preflight.machine import Finding
from spotlight.running import coordinator_check

WELL = Finding("python", "ok", "3.11 on linux")
SMALL = Finding("disk", "warn", "5.0 GB free", "free some space")
BROKEN = Finding("torch", "fail", "[red]does not see the GPU[/x] " * 9, "update the driver")


def drawn(found: list[Finding], width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(findings_table(found))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, reached_by_join: Any) -> list[Finding]:
    """What the machine says; a test may add to it."""
    findings = [WELL, SMALL]

    async def nothing(*_: Any) -> list[Finding]:
        return []

    monkeypatch.setattr(machine, "machine_findings", lambda _: findings)
    monkeypatch.setattr(coordinator_check, "coordinator_findings", nothing)
    return findings


def test_a_warning_is_no_failure(found: list[Finding], spotlight: Any) -> None:
    code, out, _ = spotlight("doctor")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["ok", "warn", "free"]


def test_what_fails_is_known_by_the_exit_code(found: list[Finding], spotlight: Any) -> None:
    found.append(BROKEN)
    code, out, _ = spotlight("doctor", "--json")
    assert code == 1
    assert [finding["state"] for finding in json.loads(out)] == ["ok", "warn", "fail"]


@pytest.mark.parametrize("width", [80, 120])
def test_findings_fit_the_terminal_and_are_no_markup(width: int) -> None:
    lines = drawn([WELL, BROKEN], width)
    assert max(map(len, lines)) <= width
    assert "[red]does not see the GPU[/x]" in " ".join(" ".join(lines).split())
    assert lines[-1].strip() == "update the driver"


def test_the_version_is_that_of_the_build(spotlight: Any) -> None:
    code, out, _ = spotlight("version")
    assert code == 0 and out.startswith(f"spotlight {__version__} (")
    said = json.loads(spotlight("version", "--json")[1])
    assert said["version"] == __version__ and said["build"] in out
