"""In whatever order its events happen, and whenever it is killed, a run does everything once."""

from __future__ import annotations

import copy
from collections import Counter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iteration_kit import Run, complete, versions

from spotlight.policies import iteration as step
from spotlight.policies.iteration import Exploration, Instruction, Schedule

MAIN_LINE = (
    step.PublishWeights,
    step.BeginRollout,
    step.BeginTraining,
    step.BeginExploration,
    step.EndExploration,
    step.RecordIteration,
    step.SaveProgress,
    step.KeepState,
)
"""Instructions that come in the same order whatever validations and checkpoints do."""


def check_whole_run(run: Run) -> None:
    """After the end: everything once, from where the run began."""
    schedule, first = run.schedule, run.completed
    explored = {
        "never": range(0),
        "ahead": range(first + 1, schedule.iterations),
        "fresh": range(first, schedule.iterations),
    }[schedule.explores]
    wanted: list[Instruction] = [
        *(
            step.PublishWeights(version, version in versions(schedule) - run.validated)
            for version in range(first, schedule.iterations + 1)
        ),
        *(
            kind(iteration)
            for iteration in range(first, schedule.iterations)
            for kind in (step.BeginRollout, step.BeginTraining, step.RecordIteration)
        ),
        *(
            kind(iteration)
            for iteration in range(first, schedule.iterations)
            if iteration in run.divided
            for kind in (step.SettleSamples, step.GoOnTraining)
        ),
        *(
            kind(iteration)
            for iteration in explored
            for kind in (step.BeginExploration, step.EndExploration)
        ),
        *(
            step.BeginValidation(version)
            for version in versions(schedule) - run.validated
            if version >= first
        ),
        *(
            step.SaveProgress(completed)
            for completed in range(first + 1, schedule.iterations + 1)
            if schedule.saves(completed)
        ),
        *(
            step.KeepState(completed)
            for completed in range(first + 1, schedule.iterations + 1)
            if not schedule.saves(completed)
        ),
        step.ExportWeights(),
        step.Finish(),
    ]
    done = [entry for entry in run.log if not isinstance(entry, step.CommitProgress)]
    assert Counter(done) == Counter(wanted)
    assert run.log[-1] == step.Finish()
    assert run.commits == sorted(set(run.commits))
    assert first == schedule.iterations or run.commits[-1] == schedule.iterations


def main_line(run: Run, completed: int) -> list[Instruction]:
    """What is left to do after so many iterations, in order."""
    line = [entry for entry in run.log if isinstance(entry, MAIN_LINE)]
    begin = next(
        place
        for place, entry in enumerate(line)
        if isinstance(entry, step.PublishWeights) and entry.version == completed
    )
    later = [
        entry
        for entry in line[begin:]
        if entry
        not in (
            step.RecordIteration(completed - 1),
            step.SaveProgress(completed),
            step.KeepState(completed),
        )
    ]
    return [entry.version if isinstance(entry, step.PublishWeights) else entry for entry in later]


def every_ending(run: Run):
    """All runs that can follow, by every order of events; orders that lead to the same are one."""
    seen, stack = set(), [run]
    while stack:
        run = stack.pop()
        if run.key() in seen:
            continue
        seen.add(run.key())
        yield run
        for index in run.possible():
            following = copy.deepcopy(run)
            following.happen(index)
            stack.append(following)


SCHEDULES = [
    Schedule(iterations, every, save, explores)
    for iterations, every, save in [(1, 1, 1), (2, 1, 1), (3, 1, 1), (3, 2, 2), (3, 9, 9)]
    for explores in get_args(Exploration)
]


def named(schedule: Schedule) -> str:
    numbers = f"{schedule.iterations}-{schedule.validate_every}-{schedule.checkpoint_every}"
    return f"{numbers}-{schedule.explores}"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=named)
def test_every_order_of_events_does_everything_once_and_finishes(schedule):
    endings = 0
    for run in every_ending(Run(schedule)):
        if not run.pending:
            check_whole_run(run)
            endings += 1
    assert endings > 0


@pytest.mark.parametrize("reused", [{1, 2}, {1}, {2}], ids=str)
@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s.explores == "ahead"], ids=named)
def test_every_order_of_events_finishes_when_previews_are_the_samples(schedule, reused):
    endings = 0
    for run in every_ending(Run(schedule, reused=frozenset(reused))):
        if not run.pending:
            check_whole_run(run)
            endings += 1
    assert endings > 0


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s.explores == "ahead"], ids=named)
def test_every_order_of_events_finishes_when_iterations_are_trained_in_two_parts(schedule):
    """The weights of the one before may be published before or after the first part is trained."""
    reused = frozenset({1, 2})
    endings = 0
    for run in every_ending(Run(schedule, reused=reused, divided=reused)):
        if not run.pending:
            check_whole_run(run)
            endings += 1
    assert endings > 0


@pytest.mark.parametrize("schedule", SCHEDULES, ids=named)
def test_a_run_resumed_from_any_commit_does_just_what_was_left(schedule):
    whole = complete(Run(schedule))
    resumed = set()
    for run in every_ending(Run(schedule)):
        if not run.commits:
            continue
        completed = run.commits[-1]
        kept = frozenset(version for version in run.on_record if version <= completed)
        if (completed, kept) in resumed:
            continue
        resumed.add((completed, kept))
        again = complete(Run(schedule, completed, kept))
        check_whole_run(again)
        assert main_line(again, completed) == main_line(whole, completed)
        assert again.on_record == versions(schedule)
    assert resumed


@settings(max_examples=50, deadline=None)
@given(
    schedule=st.builds(
        Schedule,
        st.integers(1, 12),
        st.integers(1, 5),
        st.integers(1, 5),
        st.sampled_from(get_args(Exploration)),
    ),
    random=st.randoms(use_true_random=False),
)
def test_long_runs_that_are_killed_and_resumed_at_any_time_finish(schedule, random):
    run = Run(schedule)
    for _ in range(3):
        for _ in range(random.randrange(8 * schedule.iterations)):
            if run.pending:
                run.happen(random.choice(run.possible()))
        if run.commits:
            completed = run.commits[-1]
            kept = frozenset(version for version in run.on_record if version <= completed)
            run = Run(schedule, completed, kept)
    complete(run, random.choice)
    check_whole_run(run)
    assert run.on_record == versions(schedule)


def killed(run: Run) -> Run:
    """What a coordinator that is killed now and comes back finds: trainers that have not lost
    anything, the iteration of the last record, and the weights of validations that were open."""
    settled = [n.iteration + 1 for n in run.log if isinstance(n, step.RecordIteration)]
    completed = max(settled, default=run.completed)
    open_validations = {n.version for n in run.pending if isinstance(n, step.BeginValidation)}
    again = Run(
        run.schedule,
        completed,
        frozenset(run.on_record),
        committed=run.machine.committed,
        validating=frozenset(version for version in open_validations if version < completed),
        reused=run.reused,
    )
    if run.schedule.saves(completed) and completed > run.machine.committed:
        again.pending.append(step.SaveProgress(completed))
    return again


@settings(max_examples=50, deadline=None)
@given(
    schedule=st.builds(
        Schedule,
        st.integers(1, 8),
        st.integers(1, 4),
        st.integers(1, 4),
        st.sampled_from(get_args(Exploration)),
    ),
    random=st.randoms(use_true_random=False),
)
def test_a_coordinator_killed_again_and_again_finishes_the_run(schedule, random):
    ahead = range(1, schedule.iterations) if schedule.explores == "ahead" else ()
    reused = frozenset(iteration for iteration in ahead if random.random() < 0.7)
    run, trained = Run(schedule, reused=reused), []
    for life in range(4):
        for _ in range(random.randrange(6 * schedule.iterations) if life < 3 else 10**6):
            if run.pending:
                run.happen(random.choice(run.possible()))
        trained += [n.iteration for n in run.log if isinstance(n, step.RecordIteration)]
        if life < 3:
            run = killed(run)
    assert run.log[-1] == step.Finish()
    assert run.machine.committed == schedule.iterations
    assert run.on_record == versions(schedule)
    assert trained == list(range(schedule.iterations)), "each iteration is settled once"
