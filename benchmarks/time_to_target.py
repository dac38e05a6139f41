"""How long a run takes to reach a validation score.

Pure. A single validation is noisy, so a curve is smoothed first: each point becomes the mean, of
times and of scores, of `SMOOTHED` points in a row. Between these points a curve is a straight line,
so that it does not matter how often a run is validated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

Curve = Sequence[tuple[float, float]]
"""(seconds, score), in the order of time."""

SMOOTHED = 3

LEVELS = (25, 50, 75, 95)
"""Percent of the way of a run from its first score to its last; the last of them is the target."""


def smoothed(curve: Curve) -> list[tuple[float, float]]:
    """Moving means; shorter by `SMOOTHED - 1` points."""
    windows = [curve[first : first + SMOOTHED] for first in range(len(curve) + 1 - SMOOTHED)]
    return [
        (fmean(time_s for time_s, _ in window), fmean(score for _, score in window))
        for window in windows
    ]


def milestones(curve: Curve) -> dict[int, float]:
    """The scores at the `LEVELS` of a run's way; none if it learned nothing."""
    line = smoothed(curve)
    first, last = line[0][1], line[-1][1]
    if last <= first:
        return {}
    return {level: first + level / 100 * (last - first) for level in LEVELS}


def time_to(target: float, curve: Curve) -> float | None:
    """When the smoothed curve is at the target for the first time; None if it never is."""
    line = smoothed(curve)
    if line and line[0][1] >= target:
        return line[0][0]
    for (before_s, low), (after_s, high) in pairwise(line):
        if high >= target:
            return before_s + (after_s - before_s) * (target - low) / (high - low)
    return None


def score_at(time_s: float, line: Curve) -> float:
    """On the straight line between two points; before the first and after the last as there."""
    index = bisect_left([at for at, _ in line], time_s)
    if index in (0, len(line)):
        return line[min(index, len(line) - 1)][1]
    (before_s, low), (after_s, high) = line[index - 1], line[index]
    return low + (high - low) * (time_s - before_s) / (after_s - before_s)
