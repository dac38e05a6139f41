import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.resume import ResumePoint, resume_point

NONE: frozenset[int] = frozenset()
ALL = frozenset(range(10))


def test_a_run_goes_on_with_its_newest_iteration_when_the_trainers_are_there():
    assert resume_point(7, 5, [7, 7], frozenset({6})) == ResumePoint(7, "trainers")


def test_weights_that_wait_for_their_validation_must_still_be_published():
    assert resume_point(7, 5, [7, 7], NONE) == ResumePoint(5, "checkpoint")
    assert resume_point(7, 7, [7, 7], NONE) == ResumePoint(7, "trainers")


def test_trainers_that_went_on_by_one_iteration_are_found_too():
    assert resume_point(7, 5, [8, 8], frozenset({7})) == ResumePoint(7, "trainers")


def test_trainers_may_go_on_while_the_weights_of_the_iteration_are_being_published():
    assert resume_point(7, 5, [8, 8], frozenset({6})) == ResumePoint(7, "trainers")


def test_the_weights_that_made_the_samples_are_needed_then():
    assert resume_point(7, 5, [8, 8], frozenset({5, 8})) == ResumePoint(5, "checkpoint")


def test_without_reuse_only_the_weights_of_the_iteration_made_its_samples():
    at = resume_point(7, 5, [8], frozenset({6}), state=7, reuses=False)
    assert at == ResumePoint(7, "state")


@pytest.mark.parametrize("trainers", [[7, -1], [7, 8], [-1, -1], [6, 6], [9, 9], []])
def test_otherwise_it_goes_on_from_the_checkpoint(trainers):
    assert resume_point(7, 5, trainers, ALL) == ResumePoint(5, "checkpoint")


def test_without_a_checkpoint_it_begins_again():
    assert resume_point(7, 0, [-1], NONE) == ResumePoint(0, "checkpoint")


@pytest.mark.parametrize("state", [7, 6, 5])
def test_lost_trainers_are_replaced_from_the_state_that_they_left(state):
    assert resume_point(7, 5, [], ALL, state=state) == ResumePoint(state, "state")


def test_trainers_that_are_there_need_no_state():
    assert resume_point(7, 5, [7], ALL, state=7, held=ALL) == ResumePoint(7, "trainers")


def test_a_state_that_is_older_than_the_checkpoint_is_of_no_use():
    assert resume_point(7, 5, [], ALL, state=4) == ResumePoint(5, "checkpoint")


def test_weights_before_the_state_that_have_no_score_must_be_held_by_a_node():
    open = [4, 6, 7]
    at_state, at_checkpoint = ResumePoint(7, "state"), ResumePoint(3, "checkpoint")
    assert resume_point(7, 3, [], ALL, state=7, held={4, 6}, unvalidated=open) == at_state
    assert resume_point(7, 3, [], ALL, state=7, held={4, 7}, unvalidated=open) == at_checkpoint


def test_weights_after_the_state_are_made_again():
    assert resume_point(7, 5, [], ALL, state=6, unvalidated=[6, 7]) == ResumePoint(6, "state")


@given(
    newest=st.integers(0, 5),
    checkpoint=st.integers(0, 5),
    trainers=st.lists(st.integers(-1, 6), max_size=3),
    published=st.frozensets(st.integers(0, 6)),
    state=st.none() | st.integers(0, 5),
    held=st.frozensets(st.integers(0, 6)),
    unvalidated=st.frozensets(st.integers(0, 5)),
)
def test_what_is_resumed_can_be(newest, checkpoint, trainers, published, state, held, unvalidated):
    at = resume_point(
        newest, checkpoint, trainers, published, state=state, held=held, unvalidated=unvalidated
    )
    match at.origin:
        case "trainers":
            assert at.completed == newest
            assert len(set(trainers)) == 1, "ranks must agree"
            ahead = trainers[0] - newest
            assert ahead in (0, 1)
            assert ahead == 0 or {newest, newest - 1} & published
        case "state":
            assert at.completed == state >= checkpoint
            lost = {version for version in unvalidated if version < at.completed} - held
            assert not lost, "its score would be missing"
        case "checkpoint":
            assert at.completed == checkpoint


@given(
    newest=st.integers(0, 5),
    checkpoint=st.integers(0, 5),
    trainers=st.lists(st.integers(-1, 6), max_size=3),
    published=st.frozensets(st.integers(0, 6)),
    state=st.none() | st.integers(0, 5),
    held=st.frozensets(st.integers(0, 6)),
)
def test_a_state_costs_no_iteration_that_could_be_kept_without_it(
    newest, checkpoint, trainers, published, state, held
):
    newest = max(newest, checkpoint)  # what is in the checkpoint is done
    without = resume_point(newest, checkpoint, trainers, published)
    at = resume_point(newest, checkpoint, trainers, published, state=state, held=held)
    assert at.completed >= without.completed
