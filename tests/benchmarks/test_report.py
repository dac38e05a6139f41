"""What every benchmark takes and prints."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.report import Report

EXAMPLE = """
import structlog
from benchmarks.report import Report
report = Report("example", None, minutes=6)
report.begin()
structlog.get_logger().warning("not_all_is_well")
report.add({"first": report.times(30, quick=2)})
report.note("half of it is done")
report.add({"second": 0.5})
report.finish()
"""


def example(*options: str) -> subprocess.CompletedProcess[str]:
    """What a benchmark with these options prints."""
    return subprocess.run(
        [sys.executable, "-c", EXAMPLE, *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def begun(monkeypatch: pytest.MonkeyPatch, *options: str) -> Report:
    """One that takes six minutes, called with these options."""
    monkeypatch.setattr(sys, "argv", ["example", *options])
    report = Report("example", None, minutes=6)
    report.begin()
    return report


def test_with_json_only_the_figures_are_on_standard_output() -> None:
    done = example("--json")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["figures"] == {"first": 30, "second": 0.5}
    assert "not_all_is_well" in done.stderr


def test_figures_are_shown_before_what_comes_after_them() -> None:
    said = example("--json").stderr
    assert said.index("first") < said.index("half of it is done") < said.index("second")


def test_without_json_figures_are_lines_before_the_last_one() -> None:
    *lines, last = example().stdout.splitlines()
    assert lines == ["first  30", "second  0.5"]
    assert json.loads(last)["name"] == "example"


def test_it_says_first_how_long_it_takes() -> None:
    assert example().stderr.startswith("example: takes about 6 min on two idle cores")
    assert example("--minutes", "2.5").stderr.startswith("example: takes about 2.5 min")


def test_fewer_minutes_are_fewer_repetitions_but_no_fewer_than_a_quick_run_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert begun(monkeypatch).times(30, quick=2) == 30
    assert begun(monkeypatch, "--minutes", "3").times(30, quick=2) == 15
    assert begun(monkeypatch, "--minutes", "0.1").times(30, quick=2) == 2
    assert begun(monkeypatch, "--minutes", "60").times(30, quick=2) == 30
    assert begun(monkeypatch, "--quick").times(30, quick=2) == 2


def test_time_is_up_after_the_minutes_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(monkeypatch, "--minutes", "1e-9").is_time_up()
    assert not begun(monkeypatch, "--minutes", "1000").is_time_up()
    assert not begun(monkeypatch).is_time_up()


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "many"])
def test_minutes_that_are_none_are_refused_by_name(minutes: str) -> None:
    done = example("--minutes", minutes)
    assert done.returncode == 2
    assert f"argument --minutes: must be a number above 0, not `{minutes}`" in done.stderr
