"""Every benchmark starts, and prints the figures that docs/benchmarks.md publishes of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import sample_traffic
from benchmarks.dashboard_browser import what_is_missing
from tests.worker_templates import apart

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
LIMIT_S = 900
"""Some twenty seconds on an idle machine."""

NO_BENCHMARKS = {
    "control_plane_coordinator",
    "control_plane_farm",
    "control_plane_keys",
    "dashboard_loop",
    "large_run",
    "staleness",
    "tensors_peers",
    "traced_worker",
    "unscored_worker",
}
"""Modules that are started by benchmarks, what writes runs for them, and the study of a run that
somebody names."""
APART = {
    "faults",
    "gradients",
    "ledger",
    "live_chaos",
    "live_jobs",
    "sample_traffic",
    "security",
    "trainer_loss",
    "upgrade",
}
"""They look for workers below their nodes, or have a network of their own, in which no template of
this process is reached, or run other code in nodes."""
RIGHT: dict[str, dict[str, object]] = {
    "chaos": {"violations": 0},
    "dashboard": {"updates_dropped": 0, "sideways_px": 0},
    "exploration": {"missing": [], "could_not_be_made": {}},
    "faults": {"finished_fraction": 1.0, "bit_equal_fraction": 1.0, "by_hand": 0, "left_behind": 0},
    "fuzz": {"findings": 0, "one_sided": 0},
    "families": {
        "families_done": 1,
        "models_per_process": 1,
        "exports_equal": 1,
        "losses_finite": 1.0,
        "losses_falling": 1.0,
    },
    "going_on": {"continued_bit_equal": 1.0},
    "gradients": {
        "bit_equal_fraction": 1.0,
        "slices_lost": 0,
        "slices_twice": 0,
        "real_processes_equal": 1,
    },
    "jobs": {"bit_equal_fraction": 1.0, "requests_lost": 0, "jobs_lost": 0, "violations": 0},
    "ledger": {"violations": 0, "problems": []},
    "live_chaos": {"violations": 0, "pool_loss_bit_equal": True},
    "live_jobs": {"finished_fraction": 1.0, "bit_equal_fraction": 1.0, "problems": []},
    "preemption": {
        "requests_lost": 0,
        "counted_twice": 0,
        "images_equal_fraction": 1.0,
        "steps_repeated_over_bound": 0,
        "steps_repeated_after_notice_max": 0,
    },
    "regroup": {"requests_lost": 0, "counted_twice": 0, "sp_ranks_differ": 0},
    "rewards": {"scored_zero": 0, "scored_wrong": 0, "lost": 0, "counted_twice": 0},
    "sample_traffic": {"bit_equal": 1},
    "security": {"refused_fraction": 1.0},
    "tensors": {"mixed_versions": 0},
    "trainer_loss": {"bit_equal_fraction": 1.0},
    "users": {"right_fraction": 1.0},
}
"""Figures that do not depend on the machine, however little is measured."""
PACKAGES = {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
BENCHMARKS = sorted(
    {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
        and path.stem not in NO_BENCHMARKS
    }
    | (PACKAGES - NO_BENCHMARKS)
)


def published(benchmark: str) -> set[str]:
    """The figures in the first column of the tables below the benchmark's heading."""
    heading = f"## `{benchmark}`"
    section = re.split(r"^(?=## )", DOCS, flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(heading))
    cells = re.findall(r"^\|([^|]*)\|", text, flags=re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([a-z0-9_]+)`", cell)}


def test_the_headings_in_the_docs_are_the_benchmarks_that_there_are() -> None:
    headings = re.findall(r"^## `(\w+)`", DOCS, flags=re.MULTILINE)
    assert sorted(headings) == BENCHMARKS


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_it_starts_and_prints_its_figures(benchmark: str) -> None:
    if benchmark == "dashboard" and (missing := what_is_missing()):
        pytest.skip(missing)
    if benchmark == "sample_traffic" and (missing := sample_traffic.what_is_missing()):
        pytest.skip(missing)
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", "--quick", "--json"],
        cwd=ROOT,
        env=apart() if benchmark in APART else None,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["name"] == benchmark
    assert result["machine"]["cores"] > 0
    assert result["commit"]
    found = {name.partition("[")[0] for name in result["figures"]}  # some are of a task each
    assert published(benchmark) <= found
    assert found
    right = RIGHT.get(benchmark, {})
    assert {name: result["figures"][name] for name in right} == right, done.stderr[-4000:]
