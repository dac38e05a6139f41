"""When a score will be reached, by the trend of the latest validations. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_LATEST = 6
"""How many validations say what the trend is."""
_FEWEST = 3
_LEAST_T = 2.0
"""A slope is a trend if it is so many times its standard error."""
_FARTHEST = 10.0
"""Nobody knows what comes after so many times the time that the trend was seen for."""


def seconds_to(target: float, scores: Sequence[tuple[float, float]]) -> float | None:
    """Seconds from the latest of `scores` (time, score) until the target; 0 if one has reached it.

    None where there is no trend: too few scores, none that rises beyond its noise, or a target that
    is too far away to be said.
    """
    if any(score >= target for _, score in scores):
        return 0.0
    latest = list(scores)[-_LATEST:]
    fit = _line(latest)
    if fit is None:
        return None
    slope, now = fit
    seconds = max(0.0, target - now) / slope
    seen_s = latest[-1][0] - latest[0][0]
    return seconds if seconds <= _FARTHEST * seen_s else None


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """(slope, value at the last point) by least squares; None if the slope is none, or falls."""
    if len(points) < _FEWEST:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread <= 0:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    left = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    error = (left / (len(points) - 2) / spread) ** 0.5
    if slope <= 0 or slope < _LEAST_T * error:
        return None
    return slope, mean_y + slope * (points[-1][0] - mean_x)
