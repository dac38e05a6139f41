"""Which checkpoints of a run are kept, and which of them is the best one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from spotlight.record.run_metrics import ValidationMetrics


def scores_of(validations: Iterable[ValidationMetrics]) -> dict[int, float]:
    """The score of each weights version."""
    return {one.weights_version: one.score for one in validations}


def checks_of(validations: Iterable[ValidationMetrics]) -> dict[int, float]:
    """What each weights version is worth by the rewards that nobody trains on, if there are any."""
    return {one.weights_version: one.checks for one in validations if one.checks is not None}


def best_version(scores: Mapping[int, float]) -> int | None:
    """The weights version with the highest validation score, of equal ones the one that was trained
    longest; None if there are no scores.
    """
    return max(scores, key=lambda version: (scores[version], version), default=None)


def kept_checkpoints(
    saved: Collection[int], committed: int, scores: Mapping[int, float], last: int
) -> frozenset[int]:
    """The checkpoints that must not be deleted, each named by the iterations that it holds.

    Args:
        saved: those that there are.
        committed: the one that a resume begins from. Newer ones wait for their own commit, and what
            was validated after it may yet be validated again: neither is judged.
        scores: validation scores by weights version.
        last: so many are kept besides those that wait, the committed one included; at least 1.

    The committed one, those that wait, the last ones before it, and the one with the best score.
    """
    before = sorted(number for number in saved if number <= committed)
    judged = {number: scores[number] for number in before if number in scores}
    best = best_version(judged)
    return frozenset(
        {
            *(number for number in saved if number >= committed),
            *before[-last:],
            *(() if best is None else (best,)),
        }
    )
