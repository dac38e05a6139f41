"""What is validated, saved and committed, and what a checkpoint waits for."""

from __future__ import annotations

import pytest
from iteration_kit import ONE_ITERATION, Run, complete, events, versions

from spotlight.policies import iteration as step
from spotlight.policies.iteration import IterationMachine, Schedule


def test_validations_that_were_open_at_a_kill_are_begun_again_first():
    schedule = Schedule(5, validate_every=1, checkpoint_every=1, explores="never")
    machine = IterationMachine(schedule, 3, frozenset({0}), 0, frozenset({1, 2}))
    assert machine.start() == [
        step.BeginValidation(1),
        step.BeginValidation(2),
        step.PublishWeights(3, True),
    ]


def test_validations_on_record_are_not_begun_again():
    schedule = Schedule(5, validate_every=2, checkpoint_every=1, explores="never")
    machine = IterationMachine(schedule, 3, frozenset({0, 2}), 0, frozenset({1, 2}))
    assert machine.start() == [step.PublishWeights(3, False)]


def test_a_checkpoint_waits_for_the_validations_that_were_open_at_a_kill():
    schedule = Schedule(5, validate_every=2, checkpoint_every=1, explores="never")
    machine = IterationMachine(schedule, 3, frozenset({0}), 1, frozenset({2}))
    machine.start()
    assert machine.progress_saved(3) == []
    assert machine.validation_done(2) == [step.CommitProgress(3)]


def test_a_checkpoint_on_record_is_not_committed_again():
    schedule = Schedule(5, validate_every=9, checkpoint_every=1, explores="never")
    machine = IterationMachine(schedule, 3, frozenset({0}), committed=2)
    machine.start()
    assert machine.progress_saved(2) == []
    assert machine.progress_saved(3) == [step.CommitProgress(3)]


def test_an_open_validation_of_older_weights_delays_the_commit_but_not_the_work():
    schedule = Schedule(4, validate_every=4, checkpoint_every=1, explores="never")
    run = events(Run(schedule), *ONE_ITERATION, step.SaveProgress, *ONE_ITERATION)
    assert run.commits == []
    events(run, step.BeginValidation)
    assert run.commits == [1]
    events(run, step.SaveProgress)
    assert run.commits == [1, 2]


def test_a_validation_of_the_checkpoint_s_own_weights_does_not_delay_the_commit():
    schedule = Schedule(4, validate_every=1, checkpoint_every=1, explores="never")
    run = events(Run(schedule), step.PublishWeights, step.BeginValidation)
    events(run, step.BeginRollout, step.BeginTraining, step.PublishWeights, step.SaveProgress)
    assert step.BeginValidation(1) in run.pending
    assert run.commits == [1]


def test_a_checkpoint_is_committed_though_a_newer_one_must_wait():
    schedule = Schedule(9, validate_every=1, checkpoint_every=1, explores="never")
    run = events(Run(schedule), *ONE_ITERATION, *ONE_ITERATION)
    events(run, step.SaveProgress, step.SaveProgress)
    assert run.commits == []
    events(run, step.BeginValidation)  # of version 0; that of version 1 is open
    assert run.commits == [1]
    events(run, step.BeginValidation)
    assert run.commits == [1, 2]


def test_a_checkpoint_older_than_the_committed_one_changes_nothing():
    schedule = Schedule(9, validate_every=9, checkpoint_every=1, explores="never")
    run = events(Run(schedule), *ONE_ITERATION, *ONE_ITERATION, step.BeginValidation)
    assert run.machine.progress_saved(2) == [step.CommitProgress(2)]
    assert run.machine.progress_saved(1) == []


def test_the_job_waits_for_the_last_weights_though_the_last_checkpoint_is_durable():
    schedule = Schedule(1, validate_every=1, checkpoint_every=1, explores="never")
    run = events(Run(schedule), *ONE_ITERATION, step.BeginValidation, step.SaveProgress)
    assert step.Finish() not in run.log
    events(run, step.PublishWeights)
    assert step.Finish() not in run.log
    events(run, step.BeginValidation)
    assert run.log[-1] == step.ExportWeights()
    events(run, step.ExportWeights)
    assert run.log[-3:] == [step.CommitProgress(1), step.ExportWeights(), step.Finish()]


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5])])
def test_the_first_the_last_and_every_nth_version_are_validated(every, expected):
    assert sorted(versions(Schedule(5, every, 1, explores="never"))) == expected


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_the_last_and_every_nth_iteration_are_saved(every, expected):
    schedule = Schedule(5, 9, every, explores="never")
    assert [done for done in range(1, 6) if schedule.saves(done)] == expected


def test_what_is_validated_is_saved_so_that_it_can_be_exported():
    schedule = Schedule(9, validate_every=4, checkpoint_every=3, explores="never")
    assert [done for done in range(1, 10) if schedule.saves(done)] == [3, 4, 6, 8, 9]


def test_the_state_is_kept_after_every_iteration_and_nothing_waits_for_it():
    run = complete(Run(Schedule(5, validate_every=9, checkpoint_every=3, explores="never")))
    kept = [e for e in run.log if isinstance(e, step.SaveProgress | step.KeepState)]
    assert kept == [
        step.KeepState(1),
        step.KeepState(2),
        step.SaveProgress(3),
        step.KeepState(4),
        step.SaveProgress(5),
    ]
    assert run.commits == [3, 5]
