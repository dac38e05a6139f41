"""How long a run takes to reach a validation score.

Pure. A single validation is noisy, so a curve is smoothed first: each point becomes the mean, of
times and of scores, of `SMOOTHED` points in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

Curve = Sequence[tuple[float, float]]
"""(seconds, score), in the order of time."""

SMOOTHED = 3


def smoothed(curve: Curve) -> list[tuple[float, float]]:
    """Moving means; shorter by `SMOOTHED - 1` points."""
    windows = [curve[first : first + SMOOTHED] for first in range(len(curve) + 1 - SMOOTHED)]
    return [
        (mean(time_s for time_s, _ in window), mean(score for _, score in window))
        for window in windows
    ]


def final_score(curve: Curve) -> float:
    """What a run has reached at its end: the target of the others."""
    return smoothed(curve)[-1][1]


def milestones(curve: Curve) -> dict[str, float]:
    """The scores at a quarter, half, three quarters and all of a run's way to its final score."""
    first, last = smoothed(curve)[0][1], final_score(curve)
    return {f"{share} %": first + share / 100 * (last - first) for share in (25, 50, 75, 100)}


def time_to(target: float, curve: Curve) -> float | None:
    """When the smoothed curve is at the target for the first time; None if it never is."""
    return next((time_s for time_s, score in smoothed(curve) if score >= target), None)
