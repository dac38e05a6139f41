"""Learning rates, against their formulas."""

from __future__ import annotations

import math
from itertools import islice

import msgspec
import pytest

from spotlight.jobs import TrainingSpec
from spotlight.training.learning_rates import learning_rates

SPEC = TrainingSpec(learning_rate=0.5)


def rates(schedule: str, warmup: int, updates: int = 20) -> list[float]:
    training = msgspec.structs.replace(SPEC, learning_rate_schedule=schedule, warmup_updates=warmup)
    return list(islice(learning_rates(training, updates), updates))


def test_a_constant_rate_is_that_of_the_job_to_the_bit() -> None:
    assert rates("constant", 0) == [0.5] * 20


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_warm_up_climbs_in_equal_steps_to_the_full_rate(schedule: str) -> None:
    found = rates(schedule, 4)
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert max(found) == pytest.approx(0.5)


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_a_linear_schedule_falls_to_nothing_after_the_last_update(warmup: int) -> None:
    found = rates("linear", warmup)[warmup:]
    assert found == pytest.approx([0.5 * (1 - i / len(found)) for i in range(len(found))])


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_a_cosine_schedule_is_half_a_wave(warmup: int) -> None:
    found = rates("cosine", warmup)[warmup:]
    wave = [(1 + math.cos(math.pi * i / len(found))) / 2 for i in range(len(found))]
    assert found == pytest.approx([0.5 * each for each in wave])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_job_that_is_all_warm_up_never_goes_beyond_its_rate(schedule: str) -> None:
    assert rates(schedule, 20) == pytest.approx([0.5 * (i + 1) / 21 for i in range(20)])
