import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.resume import ResumePoint, resume_point

NONE: frozenset[int] = frozenset()


def test_a_run_goes_on_with_its_newest_iteration_when_the_trainers_are_there():
    assert resume_point(7, 5, [7, 7], frozenset({6})) == ResumePoint(7, warm=True)


def test_weights_that_wait_for_their_validation_must_still_be_published():
    assert resume_point(7, 5, [7, 7], NONE) == ResumePoint(5, warm=False)
    assert resume_point(7, 7, [7, 7], NONE) == ResumePoint(7, warm=True)


def test_trainers_that_went_on_by_one_iteration_are_found_too():
    assert resume_point(7, 5, [8, 8], frozenset({7})) == ResumePoint(7, warm=True)


def test_the_weights_of_the_iteration_before_are_needed_then():
    assert resume_point(7, 5, [8, 8], frozenset({6, 8})) == ResumePoint(5, warm=False)


@pytest.mark.parametrize("trainers", [[7, -1], [7, 8], [-1, -1], [6, 6], [9, 9], []])
def test_otherwise_it_goes_on_from_the_checkpoint(trainers):
    published = frozenset(range(10))
    assert resume_point(7, 5, trainers, published) == ResumePoint(5, warm=False)


def test_without_a_checkpoint_it_begins_again():
    assert resume_point(7, 0, [-1], NONE) == ResumePoint(0, warm=False)


@given(
    newest=st.integers(0, 5),
    checkpoint=st.integers(0, 5),
    trainers=st.lists(st.integers(-1, 6), max_size=3),
    published=st.frozensets(st.integers(0, 6)),
)
def test_what_is_resumed_can_be(newest, checkpoint, trainers, published):
    at = resume_point(newest, checkpoint, trainers, published)
    assert at.completed == (newest if at.warm else checkpoint)
    if at.warm:
        assert len(set(trainers)) == 1, "ranks must agree"
        ahead = trainers[0] - newest
        assert ahead in (0, 1)
        assert ahead == 0 or newest in published
