"""Spot workers that compute gradients and are killed at random moments: the weights are those of a
run whose reserved GPU computed everything, bit for bit.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.live.run_comparison import differences
from tests.integration.conftest import (
    SPOTLIGHT,
    Workplace,
    descendants,
    events,
    metrics,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]

ITERATIONS, UPDATES, SLICES = 4, 2, 4
KILLS = 6


def _job(workplace: Workplace, spot: int) -> Path:
    """Updates of seconds, so that there is time to help."""
    return workplace.job(
        iterations=ITERATIONS,
        group_size=16,
        sampler={"height": 32, "width": 64, "micro_batch": 8},
        training={
            "slices": SLICES,
            "updates_per_iteration": UPDATES,
            "micro_batch": 4,
            "kl": 0.01,
            "options": {"times": 4},
        },
        exploration={"mode": "none"},
        pools={"spot": {"nodes": spot}},
    )


def _workers() -> list[psutil.Process]:
    """Those on spot nodes; they are forked from a process that all tests share."""
    names = {f"spot-{number}/0" for number in range(2)}
    return [process for process in descendants(os.getpid()) if names & set(_words(process))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _slices(run: Path) -> tuple[int, int]:
    """How many were added, and how many of them others have computed."""
    lines = metrics(run, "iteration")
    return sum(it["slices"] for it in lines), sum(it["slices_by_others"] for it in lines)


@pytest.mark.parametrize("seed", [0])
def test_the_weights_are_the_same_whoever_computes_the_slices_and_is_killed(
    workplace: Workplace, seed: int
) -> None:
    alone, helped = workplace.folder / "alone", workplace.folder / "helped"
    assert workplace.spotlight("run", _job(workplace, 0), "--run-folder", alone).code == 0
    assert _slices(alone) == (ITERATIONS * UPDATES * SLICES, 0)

    rng, kills = random.Random(seed), 0
    process = workplace.start(*SPOTLIGHT, "run", _job(workplace, 2), "--run-folder", helped)
    wait_until(lambda: bool(events(helped, "phase")), "the beginning of the job")
    while process.poll() is None and kills < KILLS:
        time.sleep(rng.uniform(0.5, 3.0))
        if found := _workers():
            rng.choice(found).kill()
            kills += 1

    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert not differences(alone, helped, ITERATIONS)
    counted, by_others = _slices(helped)
    assert counted == ITERATIONS * UPDATES * SLICES
    assert by_others > 0
    assert kills and events(helped, "worker_lost")
