"""How long a run takes to reach a validation score.

Pure. A single validation is noisy, so a curve is smoothed first: each point becomes the mean of
itself and the `SMOOTHED - 1` points before it. That delays every method alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

Curve = Sequence[tuple[float, float]]
"""(seconds, score), in the order of time."""

SMOOTHED = 3


def smoothed(curve: Curve) -> list[tuple[float, float]]:
    """Trailing means; the first points have fewer to be made of."""
    scores = [score for _, score in curve]
    return [
        (time_s, mean(scores[max(0, index + 1 - SMOOTHED) : index + 1]))
        for index, (time_s, _) in enumerate(curve)
    ]


def final_score(curve: Curve) -> float:
    """What a run has reached at its end: the target of the others."""
    return smoothed(curve)[-1][1]


def time_to(target: float, curve: Curve) -> float | None:
    """When the smoothed curve is at the target for the first time; None if it never is."""
    return next((time_s for time_s, score in smoothed(curve) if score >= target), None)
