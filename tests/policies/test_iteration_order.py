"""The order in which an iteration publishes, explores, denoises and trains."""

from __future__ import annotations

from iteration_kit import ONE_ITERATION, Run, complete, events

from spotlight.policies import iteration as step
from spotlight.policies.iteration import Schedule


def test_the_order_of_a_run_without_exploration():
    run = complete(Run(Schedule(2, validate_every=2, checkpoint_every=2, explores="never")))
    assert run.log == [
        step.PublishWeights(0, True),
        step.BeginValidation(0),
        step.BeginRollout(0),
        step.BeginTraining(0),
        step.PublishWeights(1, False),
        step.RecordIteration(0),
        step.KeepState(1),
        step.BeginRollout(1),
        step.BeginTraining(1),
        step.PublishWeights(2, True),
        step.RecordIteration(1),
        step.SaveProgress(2),
        step.BeginValidation(2),
        step.CommitProgress(2),
        step.ExportWeights(),
        step.Finish(),
    ]


def test_the_order_of_a_run_with_exploration():
    run = complete(Run(Schedule(2, validate_every=2, checkpoint_every=2, explores="ahead")))
    assert run.log == [
        step.PublishWeights(0, True),
        step.BeginValidation(0),
        step.BeginRollout(0),
        step.BeginTraining(0),
        step.BeginExploration(1),
        step.EndExploration(1),
        step.PublishWeights(1, False),
        step.RecordIteration(0),
        step.KeepState(1),
        step.BeginRollout(1),
        step.BeginTraining(1),
        step.PublishWeights(2, True),
        step.RecordIteration(1),
        step.SaveProgress(2),
        step.BeginValidation(2),
        step.CommitProgress(2),
        step.ExportWeights(),
        step.Finish(),
    ]


def test_a_finished_run_that_is_resumed_finishes_again():
    schedule = Schedule(3, validate_every=2, checkpoint_every=2, explores="ahead")
    run = complete(Run(schedule, 3, frozenset({0, 2, 3})))
    assert run.log == [step.PublishWeights(3, False), step.ExportWeights(), step.Finish()]


def test_exploration_that_ends_after_publication_delays_the_next_iteration():
    schedule = Schedule(2, validate_every=2, checkpoint_every=9, explores="ahead")
    run = events(Run(schedule), *ONE_ITERATION, step.PublishWeights)
    assert step.BeginRollout(1) not in run.log
    events(run, step.EndExploration)
    assert run.log[-1] == step.BeginRollout(1)


def test_the_order_of_a_run_that_explores_with_fresh_weights():
    run = complete(Run(Schedule(2, validate_every=2, checkpoint_every=2, explores="fresh")))
    assert run.log == [
        step.PublishWeights(0, True),
        step.BeginValidation(0),
        step.BeginExploration(0),
        step.EndExploration(0),
        step.BeginRollout(0),
        step.BeginTraining(0),
        step.PublishWeights(1, False),
        step.RecordIteration(0),
        step.KeepState(1),
        step.BeginExploration(1),
        step.EndExploration(1),
        step.BeginRollout(1),
        step.BeginTraining(1),
        step.PublishWeights(2, True),
        step.RecordIteration(1),
        step.SaveProgress(2),
        step.BeginValidation(2),
        step.CommitProgress(2),
        step.ExportWeights(),
        step.Finish(),
    ]


def test_the_last_iteration_explores_nothing():
    run = complete(Run(Schedule(1, validate_every=1, checkpoint_every=1, explores="ahead")))
    assert not any(isinstance(entry, step.BeginExploration) for entry in run.log)


def test_samples_that_are_there_are_trained_on_before_their_weights_are_published():
    run = Run(Schedule(3, 9, 9, "ahead"), reused=frozenset({1}))
    events(run, step.PublishWeights, step.BeginRollout, step.BeginTraining, step.EndExploration)
    assert step.BeginRollout(1) in run.pending
    assert 1 not in run.published


def test_exploration_waits_for_the_weights_where_training_does_not():
    run = Run(Schedule(3, 9, 9, "ahead"), reused=frozenset({1}))
    events(run, step.PublishWeights, step.BeginRollout, step.BeginTraining, step.EndExploration)
    events(run, step.BeginRollout)
    assert step.BeginExploration(2) not in run.log
    events(run, step.PublishWeights)
    assert run.log[-1] == step.BeginExploration(2)


def test_training_is_never_two_publications_ahead():
    run = Run(Schedule(4, 9, 9, "ahead"), reused=frozenset({1, 2}))
    events(run, step.PublishWeights, step.BeginRollout, step.BeginTraining, step.EndExploration)
    events(run, step.BeginRollout, step.BeginTraining)
    assert run.machine.completed == 1, "the iteration is over only with its weights published"
    events(run, step.PublishWeights)
    assert run.machine.completed == 2
    assert run.log[-3:] == [
        step.BeginExploration(2),
        step.EndExploration(2),
        step.PublishWeights(2, False),
    ]


def test_only_previews_that_the_next_iteration_waits_for_are_waited_for_alone():
    run = Run(Schedule(2, validate_every=2, checkpoint_every=2, explores="ahead"))
    machine = run.machine
    assert machine.previews_of is None
    machine.start()
    machine.weights_published(0)
    machine.rolled_out(0)
    assert machine.previews_of is None, "training goes on beside them"
    machine.trained(0)
    assert machine.previews_of == 0
    machine.explored(1)
    assert machine.previews_of is None


def test_weights_of_an_open_validation_are_needed_when_trainers_have_trained_on():
    run = Run(Schedule(2, validate_every=1, checkpoint_every=2, explores="never"))
    machine = run.machine
    machine.start()
    machine.weights_published(0)
    assert machine.needs_weights_of == set(), "trainers have them"
    machine.rolled_out(0)
    machine.trained(0)
    assert machine.needs_weights_of == {0}
    machine.validation_done(0)
    assert machine.needs_weights_of == set()
