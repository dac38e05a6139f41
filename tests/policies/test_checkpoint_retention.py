import pytest

from spotlight.policies.checkpoint_retention import (
    best_version,
    checks_of,
    kept_checkpoints,
    scores_of,
)
from spotlight.record.run_metrics import ValidationMetrics


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ({}, None),
        ({0: 0.9, 5: 0.3}, 0),
        ({5: 0.3, 10: 0.8, 15: 0.7}, 10),
        ({5: 0.8, 10: 0.8}, 10),
        ({5: -3.0, 10: -7.0}, 5),
    ],
)
def test_the_best_version_has_the_highest_score_and_is_the_latest_of_equals(scores, best):
    assert best_version(scores) == best


@pytest.mark.parametrize(
    ("saved", "committed", "scores", "last", "kept"),
    [
        ([5, 10, 15], 15, {}, 1, {15}),
        ([5, 10, 15], 15, {5: 0.9, 10: 0.1, 15: 0.2}, 1, {5, 15}),
        ([5, 10, 15, 20], 20, {5: 0.9}, 2, {5, 15, 20}),
        ([5, 10], 10, {10: 0.9}, 1, {10}),
        ([5, 10], 10, {10: 0.9}, 5, {5, 10}),
    ],
    ids=["committed", "best", "last", "same", "fewer-than-asked"],
)
def test_the_last_ones_and_the_best_are_kept(saved, committed, scores, last, kept):
    assert kept_checkpoints(saved, committed, scores, last) == kept


def test_what_waits_for_its_commit_is_kept_and_not_counted():
    assert kept_checkpoints([5, 10, 15, 20], 10, {}, 1) == {10, 15, 20}


def test_the_best_stays_while_a_better_one_could_still_be_lost():
    """A recovery goes back to the committed one, and forgets the scores after it."""
    assert kept_checkpoints([5, 10, 15], 10, {5: 0.5, 10: 0.1, 15: 0.9}, 1) == {5, 10, 15}


def test_the_best_of_those_that_are_gone_does_not_count():
    assert kept_checkpoints([10, 15], 15, {5: 0.9, 10: 0.5, 15: 0.1}, 1) == {10, 15}


def test_versions_have_scores_and_with_rewards_that_nobody_trains_on_checks():
    checked = ValidationMetrics(weights_version=10, score=0.9, checks=0.2)
    plain = ValidationMetrics(weights_version=5, score=0.6)
    assert scores_of([plain, checked]) == {5: 0.6, 10: 0.9}
    assert checks_of([plain, checked]) == {10: 0.2}
