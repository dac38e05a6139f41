"""Figures made of rewards, without a model."""

from __future__ import annotations

import random

import pytest

from benchmarks.staleness.staleness_record import Comparison, Scoring, compare

SEEDS = [range(24)] * 12


def rewards(noise: float, seed: int = 0) -> tuple[tuple[float, ...], ...]:
    """The same for all, but for so much noise."""
    rng, disturbed = random.Random(0), random.Random(seed)
    return tuple(tuple(rng.random() + noise * disturbed.gauss(0, 1) for _ in row) for row in SEEDS)


def scoring(treatment: str, lag: int, noise: float) -> Scoring:
    return Scoring(treatment=treatment, lag=lag, steps=8, rewards=rewards(noise, lag))


SCORINGS = [scoring("rollout", 4, 0.5), scoring("rollout", 1, 0.1), scoring("rollout", 0, 0.0)]


@pytest.fixture(scope="module")
def few() -> tuple[Comparison, ...]:
    """Those of three lags."""
    return compare(SCORINGS, keep=4, seeds=SEEDS, seed=0)


def test_older_weights_are_compared_with_the_newest(few):
    by_lag = {one.lag: one.fidelity for one in few if one.treatment == "rollout"}
    medians = [by_lag[lag].spearman_median.value for lag in (0, 1, 4)]
    assert medians[0] == 1.0
    assert medians[0] > medians[1] > medians[2]


def test_the_control_shuffles_the_least_lag_within_each_prompt(few):
    control = few[-1]
    assert (control.treatment, control.lag) == ("shuffled", 1)
    assert abs(control.fidelity.spearman_mean.value) < 0.05
    assert control.fidelity.prompts == 16 * len(SEEDS)
    nearest = next(one for one in few if one.lag == 1)
    assert abs(control.reward - nearest.reward) < 1e-12, "the same rewards in another order"


def test_another_lag_changes_no_other_figure(few):
    more = compare([scoring("rollout", 8, 1.0), *SCORINGS], keep=4, seeds=SEEDS, seed=0)
    assert set(map(str, few)) < set(map(str, more))
