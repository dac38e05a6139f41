"""The validator: the mean of what could be scored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from job_kit import job, offer

from spotlight.actors.coordinator.validator import Validated, Validator
from spotlight.types import Request, Result


@pytest.fixture
def validator() -> Validator:
    return Validator(job(), ["a", "b", "c"])


def finish(validator: Validator, wanted: Sequence[Request], *rewards: float) -> list[Validated]:
    results = [Result(r, x, offer(), 0) for r, x in zip(wanted, rewards, strict=True)]
    return validator.finished(results)


def test_the_score_is_the_mean_of_all_images(validator: Validator) -> None:
    wanted = validator.start(5)
    assert {(r.kind, r.weights_version) for r in wanted} == {("evaluation", 5)}
    assert finish(validator, wanted[1:], 0.5, 1.0) == []
    (done,) = finish(validator, wanted[:1], 0.0)
    assert (done.version, done.score, len(done.results)) == (5, 0.5, 3)


def test_every_version_has_the_same_seeds(validator: Validator) -> None:
    first, second = validator.start(0), validator.start(5)
    assert [(r.prompt, r.seed) for r in first] == [(r.prompt, r.seed) for r in second]


def test_a_version_that_is_being_validated_is_not_started_again(validator: Validator) -> None:
    wanted = validator.start(0)
    finish(validator, wanted[:1], 0.5)
    assert validator.start(0) == ()
    assert validator.versions == {0}
    assert [done.version for done in finish(validator, wanted[1:], 0.5, 0.5)] == [0]
    assert validator.versions == set()


def test_an_image_without_a_score_is_left_out_of_the_mean(validator: Validator) -> None:
    wanted = validator.start(0)
    finish(validator, wanted[:2], 0.5, 1.0)
    (done,) = validator.given_up(wanted[2:])
    assert (done.score, len(done.results)) == (0.75, 2)


def test_a_version_without_any_score_has_failed(validator: Validator) -> None:
    (failed,) = validator.given_up(validator.start(0))
    assert (failed.version, failed.score) == (0, None)


def test_two_versions_may_be_validated_at_once_and_images_count_once(validator: Validator) -> None:
    first, second = validator.start(0), validator.start(5)
    over = finish(validator, [*second, *second], *(0.25,) * 6)
    assert [(done.version, done.score) for done in over] == [(5, 0.25)]
    over = finish(validator, first, 0.5, 0.5, 0.5)
    assert [(done.version, done.score) for done in over] == [(0, 0.5)]
