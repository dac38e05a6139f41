"""What the numbers of a machine mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.preflight.machine import (
    Finding,
    Gpu,
    TorchFacts,
    clock_finding,
    descriptors_finding,
    machine_findings,
    packages_findings,
    python_finding,
    room_finding,
    torch_finding,
)

CPU, CUDA = TorchFacts("2.13.0", ""), TorchFacts("2.13.0", "13.0", problem="driver too old")
H100 = TorchFacts("2.13.0", "13.0", (Gpu("H100", 85_520_809_984),))
HERE = Path("/runs")


@pytest.mark.parametrize(
    ("finding", "state", "said", "advice"),
    [
        (python_finding((3, 11, 7), "linux"), "ok", "3.11.7 on linux", ""),
        (python_finding((3, 10, 2), "linux"), "fail", "3.10.2", "Python 3.11 or newer"),
        (python_finding((3, 12, 0), "darwin"), "warn", "darwin", "tested on Linux"),
        (torch_finding(H100, has_device=True), "ok", "sees H100 (86 GB)", ""),
        (torch_finding(CPU, has_device=False), "warn", "there is no GPU", "on the CPU"),
        (torch_finding(CPU, has_device=True), "fail", "does not see", "built with CUDA"),
        (torch_finding(CUDA, has_device=True), "fail", "driver too old", "update the driver"),
        (torch_finding(None, has_device=True), "warn", "no worker can run", "pip install"),
        (
            torch_finding(TorchFacts("", "", problem="cannot be loaded: x"), has_device=True),
            "fail",
            "cannot be loaded: x",
            "install it anew",
        ),
        (room_finding("disk", HERE, 10**9, warn=9, fail=2), "ok", "1.0 GB free in /runs", ""),
        (room_finding("disk", HERE, 5, warn=9, fail=2), "warn", "0.0 GB", "free some"),
        (room_finding("disk", HERE, 1, warn=9, fail=2), "fail", "0.0 GB", "free some"),
        (room_finding("disk", HERE, None, warn=9, fail=2), "fail", "cannot be used", "name"),
        (descriptors_finding(None), "ok", "no limit", ""),
        (descriptors_finding(65_536), "ok", "65,536", ""),
        (descriptors_finding(1024), "warn", "at most 1,024", "LimitNOFILE"),
        (descriptors_finding(64), "fail", "at most 64", "ulimit"),
        (clock_finding(2e9, 1e9, True), "ok", "2033-05-18 03:33:20 UTC, synchronised", ""),
        (clock_finding(2e9, 1e9, None), "ok", "nobody says", ""),
        (clock_finding(2e9, 1e9, False), "warn", "not synchronised", "NTP"),
        (clock_finding(1e9, 2e9, True), "fail", "is in the past", "set it"),
    ],
    ids=lambda value: f"{value.what} {value.state}" if isinstance(value, Finding) else "",
)
def test_each_number_is_well_or_comes_with_advice(
    finding: Finding, state: str, said: str, advice: str
) -> None:
    assert finding.state == state
    assert said in finding.said
    assert advice in finding.advice and bool(finding.advice) == (state != "ok")


def test_only_what_keeps_workers_from_working_is_a_warning() -> None:
    missing = {"worker": ("torch",), "rewards": (), "serve": ("uvicorn",), "storage": ()}
    worker, rewards, others = packages_findings(missing)
    assert (worker.state, rewards.state, others.state) == ("warn", "ok", "ok")
    assert "torch missing: no worker can run here" in worker.said
    assert others.said == "serve lacks uvicorn; storage installed"


@pytest.mark.slow
def test_this_machine_is_looked_at_as_a_whole(tmp_path: Path) -> None:
    found = {finding.what: finding for finding in machine_findings(tmp_path / "runs")}
    assert {"python", "torch", "disk", "shared memory", "open files", "clock"} <= set(found)
    assert found["torch"].said.startswith("2.")
    assert all("\n" not in finding.said for finding in found.values())
