"""The validator: the mean of what could be scored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from job_kit import job, offer

from spotlight.actors.coordinator.job.validator import Validated, Validator
from spotlight.types import Request, Result


@pytest.fixture
def validator() -> Validator:
    return Validator(job(), ["a", "b", "c"])


def finish(validator: Validator, wanted: Sequence[Request], *rewards: float) -> list[Validated]:
    results = [Result(r, (x,), offer(), 0) for r, x in zip(wanted, rewards, strict=True)]
    return validator.finished(results)


def rewards(done: Validated) -> list[float]:
    return sorted(result.rewards[0] for result in done.results)


def test_a_version_is_over_when_all_its_images_are_scored(validator: Validator) -> None:
    wanted = validator.start(5)
    assert {(r.kind, r.weights_version) for r in wanted} == {("evaluation", 5)}
    assert finish(validator, wanted[1:], 0.5, 1.0) == []
    (done,) = finish(validator, wanted[:1], 0.0)
    assert (done.version, rewards(done)) == (5, [0.0, 0.5, 1.0])


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


def test_an_image_without_a_score_is_left_out(validator: Validator) -> None:
    wanted = validator.start(0)
    finish(validator, wanted[:2], 0.5, 1.0)
    (done,) = validator.given_up(wanted[2:])
    assert rewards(done) == [0.5, 1.0]


def test_a_version_without_any_score_has_no_results(validator: Validator) -> None:
    (failed,) = validator.given_up(validator.start(0))
    assert (failed.version, failed.results) == (0, ())


def test_two_versions_may_be_validated_at_once_and_images_count_once(validator: Validator) -> None:
    first, second = validator.start(0), validator.start(5)
    over = finish(validator, [*second, *second], *(0.25,) * 6)
    assert [(done.version, rewards(done)) for done in over] == [(5, [0.25] * 3)]
    over = finish(validator, first, 0.5, 0.5, 0.5)
    assert [(done.version, rewards(done)) for done in over] == [(0, [0.5] * 3)]
