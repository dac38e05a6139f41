"""Ratios of the times that two runs of the same seed take to the same score, over many seeds.

Pure. Ratios are averaged as geometric means. Their 90 % intervals are Student's t on logarithms,
since there are few seeds; two seeds tell too little of how they scatter, and have none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance

import msgspec
from scipy.special import stdtrit

from benchmarks.time_to_target import Curve, time_to

_UPPER = 0.95
"""The quantile at the upper end of an interval of 90 %."""
FEWEST = 3
"""Seeds that have an interval."""

_NEVER = 2.0
"""A run of ours that never arrives counts as one that takes so many times its whole time."""


class Estimate(msgspec.Struct, frozen=True):
    """A geometric mean over seeds, and its 90 % interval, which one or two seeds do not have."""

    value: float
    low: float | None
    high: float | None
    seeds: int
    """Seeds of all tasks together."""


class Arrival(msgspec.Struct, frozen=True):
    """When a run came to a score."""

    seconds: float
    """When it arrived, or ended."""
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
    middle, margin = fmean(map(fmean, logs)), student_margin(logs)
    value = _rounded(math.exp(middle))
    if margin is None:
        return Estimate(value, None, None, seeds)
    low, high = math.exp(middle - margin), math.exp(middle + margin)
    return Estimate(value, _rounded(low), _rounded(high), seeds)


def student_margin(groups: Sequence[Sequence[float]]) -> float | None:
    """Half of the 90 % interval of the mean of the groups' means, all of which count alike; None
    where a group has too few values. Degrees of freedom are those of Welch and Satterthwaite
    (Biometrics Bulletin 2 (1946) 110).
    """
    if min(map(len, groups)) < FEWEST:
        return None
    squares = [variance(group) / len(group) for group in groups]
    total = math.fsum(squares)
    if total == 0:
        return 0.0
    parts = zip(squares, groups, strict=True)
    freedom = total**2 / math.fsum(square**2 / (len(group) - 1) for square, group in parts)
    return float(stdtrit(freedom, _UPPER)) * math.sqrt(total) / len(groups)


def spread(ratios: Sequence[float]) -> float | None:
    """The factor by which two runs typically differ whose times have these ratios: the root mean
    square of the logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    return _rounded(math.exp(math.sqrt(fmean(x * x for x in logs)))) if logs else None


def _rounded(value: float) -> float:
    return round(value, 3)
