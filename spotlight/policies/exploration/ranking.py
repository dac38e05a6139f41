"""Small statistics that the coordinator reports: spread inside prompt groups and agreement of
rankings."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float]) -> float:
    """Population standard deviation; 0 for fewer than two values."""
    return statistics.pstdev(values) if len(values) > 1 else 0.0


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation with average ranks for ties; None if either list does not vary.

    Raises `ValueError` when the lists differ in length.
    """
    if len(first) != len(second):
        raise ValueError(f"rankings of {len(first)} and {len(second)} values cannot be compared")
    if spread(first) == 0 or spread(second) == 0:
        return None
    return statistics.correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    positions: dict[float, list[int]] = {}
    for position, value in enumerate(sorted(values)):
        positions.setdefault(value, []).append(position)
    return [statistics.fmean(positions[value]) for value in values]


def median_or_none(values: Sequence[float | None]) -> float | None:
    """The median of the values that are there; None without any."""
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None
