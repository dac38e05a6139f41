"""Ratios of the times that two runs of the same seed take to the same score, over many seeds.

Pure. Ratios are averaged as geometric means. Their 90 % intervals are percentiles of a bootstrap
over seeds, in each task by itself; of so few seeds as eight they are somewhat too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec
import numpy as np

from benchmarks.time_to_target import Curve, time_to

_RESAMPLES = 5_000
INTERVAL = (0.05, 0.95)
"""Quantiles."""

_NEVER = 2.0
"""A run of ours that never arrives counts as one that takes so many times its whole time."""


class Estimate(msgspec.Struct, frozen=True):
    """A geometric mean over seeds, and its 90 % interval, which a single seed does not have."""

    value: float
    low: float | None
    high: float | None
    seeds: int
    """Of all tasks together."""


class Arrival(msgspec.Struct, frozen=True):
    """When a run came to a score."""

    seconds: float
    """Or when it ended."""
    arrived: bool


def arrival(curve: Curve, score: float) -> Arrival:
    """See `Arrival`."""
    seconds = time_to(score, curve)
    return Arrival(curve[-1][0] if seconds is None else seconds, seconds is not None)


def speedup(ours: Arrival, other: Arrival) -> float:
    """How many times as long the other takes; at least so many where it never arrives."""
    return other.seconds / (ours.seconds * (1 if ours.arrived else _NEVER))


def estimate(ratios: Mapping[str, Sequence[float]]) -> Estimate | None:
    """Of the ratios of each task, which all count alike; None where a task has none."""
    logs = [[math.log(ratio) for ratio in each] for each in ratios.values()]
    seeds = sum(map(len, logs))
    if not logs or not all(logs):
        return None
    value = math.exp(fmean(map(fmean, logs)))
    if min(map(len, logs)) < 2:
        return Estimate(_rounded(value), None, None, seeds)
    rng = np.random.default_rng(0)
    means = np.mean([resampled_means(np.array(each), rng) for each in logs], axis=0)
    low, high = (math.exp(edge) for edge in np.quantile(means, INTERVAL))
    return Estimate(_rounded(value), _rounded(low), _rounded(high), seeds)


def resampled_means(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means, along the first axis, of as many values drawn with replacement; many times."""
    drawn = rng.integers(len(values), size=(_RESAMPLES, len(values)))
    means: np.ndarray = values[drawn].mean(axis=1)
    return means


def spread(ratios: Sequence[float]) -> float | None:
    """The factor by which two runs typically differ whose times have these ratios: the root mean
    square of the logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    return _rounded(math.exp(math.sqrt(fmean(x * x for x in logs)))) if logs else None


def _rounded(value: float) -> float:
    return round(value, 3)
