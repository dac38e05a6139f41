"""In whatever order two trainers answer, are lost or are out of reach, and whatever message is
lost, a job goes on, trains every iteration once and keeps what others go on from. `School` says
what must not happen; every state that can be reached is visited.
"""

from __future__ import annotations

import pytest
from trainers_kit import School, every_state

from spotlight.policies.iteration import Schedule


def school(*, iterations: int = 1, checkpoint_every: int = 9, is_reused: bool = False, **may: int):
    explores = "ahead" if is_reused else "never"
    schedule = Schedule(iterations, 9, checkpoint_every, explores=explores)
    budget = {fault.replace("_", " "): count for fault, count in may.items()}
    return School(schedule, budget, is_reused=is_reused)


@pytest.mark.parametrize("checkpoint_every", [1, 9])
@pytest.mark.parametrize("is_reused", [False, True])
def test_in_every_order_of_answers_a_job_is_finished(checkpoint_every, is_reused):
    job = school(iterations=2, checkpoint_every=checkpoint_every, is_reused=is_reused)
    states, ends = every_state(job)
    assert states > 200
    assert ends == {"finished"}


@pytest.mark.parametrize("fault", ["lose word", "lose answer", "remind"])
def test_whichever_message_is_lost_or_repeated_a_job_is_finished(fault):
    _, ends = every_state(school(**{fault: 1}))
    assert ends == {"finished"}


def test_where_samples_are_reused_any_order_may_be_lost():
    """What a trainer that is told to train on could not publish any more goes along."""
    _, ends = every_state(school(iterations=2, is_reused=True, lose_word=1))
    assert ends == {"finished"}


def test_no_state_takes_the_place_of_the_one_on_record_before_the_next_is_whole():
    _, ends = every_state(school(iterations=3, lose_answer=2))
    assert ends == {"finished"}


@pytest.mark.parametrize(("is_reused", "checkpoint_every"), [(True, 9), (False, 1)])
def test_whenever_a_trainer_is_lost_others_go_on(is_reused, checkpoint_every):
    job = school(iterations=2, is_reused=is_reused, checkpoint_every=checkpoint_every, end=1)
    _, ends = every_state(job)
    assert ends == {"finished"}


def test_whenever_a_coordinator_is_killed_the_next_one_goes_on():
    _, ends = every_state(school(kill=1, lose_word=1))
    assert ends == {"finished"}


def test_whenever_a_node_is_out_of_reach_its_trainer_is_waited_for_or_replaced():
    _, ends = every_state(school(cut_off=1, patience=1))
    assert ends == {"finished"}


def test_a_job_that_loses_its_trainers_again_and_again_ends():
    _, ends = every_state(school(iterations=0, end=4))
    assert {end.partition(":")[0] for end in ends} == {"finished", "failed"}
    assert any("after 3 recoveries without progress" in end for end in ends)
