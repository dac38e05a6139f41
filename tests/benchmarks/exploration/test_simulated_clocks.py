"""Iterations of the real protocol whose spot GPUs compute gradients, on a simulated cluster."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.exploration.simulated_clocks import Split, simulated_clocks

SPLIT = Split("ocr", "verl-omni-split", 8, 2)


def test_nothing_is_simulated_when_time_is_over(tmp_path: Path) -> None:
    assert simulated_clocks([SPLIT], tmp_path, ends_by=-math.inf) == {}


@pytest.mark.slow
def test_spot_gpus_that_train_shorten_an_iteration_and_it_is_simulated_once(tmp_path: Path) -> None:
    made = simulated_clocks([SPLIT], tmp_path, ends_by=math.inf)
    assert made[SPLIT] < 0.85 * 40.0  # which four ranks alone take
    assert simulated_clocks([SPLIT], tmp_path, ends_by=-math.inf) == made
