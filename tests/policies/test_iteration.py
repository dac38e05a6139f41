import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies import iteration as step
from spotlight.policies.iteration import Exploration, Instruction, IterationMachine, Schedule

CALLS = {
    step.PublishWeights: ("weights_published", lambda done: [done.version]),
    step.BeginRollout: ("rolled_out", lambda done: [done.iteration]),
    step.BeginTraining: ("trained", lambda done: [done.iteration]),
    step.GoOnTraining: ("trained", lambda done: [done.iteration]),
    step.EndExploration: ("explored", lambda done: [done.iteration]),  # see `Run.happen`
    step.BeginValidation: ("validation_done", lambda done: [done.version]),
    step.SaveProgress: ("progress_saved", lambda done: [done.completed]),
    step.ExportWeights: ("exported", lambda done: []),
}
"""Which event says that an instruction is carried out."""

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


@dataclass
class Run:
    """A machine in a world that carries out instructions in an order of the test's choice.

    Checks every instruction against what has really happened so far.
    """

    schedule: Schedule
    completed: int = 0
    validated: frozenset[int] = frozenset()
    committed: int = -1
    validating: frozenset[int] = frozenset()
    reused: frozenset[int] = frozenset()
    """Iterations whose previews are their samples."""
    divided: frozenset[int] = frozenset()
    """Iterations that are trained in two parts."""
    pending: list[Instruction] = field(default_factory=list)
    log: list[Instruction] = field(default_factory=list)
    published: set[int] = field(default_factory=set)
    chosen: set[int] = field(default_factory=set)
    on_record: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.machine = IterationMachine(
            self.schedule, self.completed, self.validated, self.committed, self.validating
        )
        self.on_record |= self.validated
        self.published |= self.validating
        if self.committed >= 0:
            self.saved |= {self.completed}  # the checkpoint may be due since before the kill
        if self.schedule.explores != "fresh":
            self.chosen.add(self.completed)
        self.take(self.machine.start())

    def possible(self) -> list[int]:
        """Which pending instructions may be carried out next: one trainer saves in order."""
        saves = [n for n, entry in enumerate(self.pending) if isinstance(entry, step.SaveProgress)]
        return [n for n in range(len(self.pending)) if n not in saves[1:]]

    def happen(self, index: int) -> None:
        """One pending instruction is carried out."""
        done = self.pending.pop(index)
        match done:
            case step.PublishWeights(version):
                self.published.add(version)
            case step.EndExploration(iteration):
                self.chosen.add(iteration)
            case step.BeginTraining(iteration) if self.schedule.explores == "never":
                self.chosen.add(iteration + 1)
            case step.BeginValidation(version):
                self.on_record.add(version)
            case step.SaveProgress(completed):
                self.saved.add(completed)
        if isinstance(done, step.BeginTraining) and done.iteration in self.divided:
            self.take(self.machine.first_trained(done.iteration))
        elif isinstance(done, step.EndExploration):
            there = done.iteration in self.reused
            self.take(self.machine.explored(done.iteration, samples_are_there=there))
        else:
            name, numbers = CALLS[type(done)]
            self.take(getattr(self.machine, name)(*numbers(done)))

    def take(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            self.check(instruction)
            self.log.append(instruction)
            if type(instruction) in CALLS:
                self.pending.append(instruction)

    def check(self, instruction: Instruction) -> None:
        assert step.Finish() not in self.log, f"{instruction} after the end"
        match instruction:
            case step.BeginRollout(iteration):
                is_ready = iteration in self.published | self.reused
                assert is_ready, "begun before its weights are published"
                assert iteration in self.chosen, "begun before its seeds are chosen"
                assert not any(isinstance(open, step.BeginRollout) for open in self.pending)
            case step.BeginTraining(iteration):
                assert step.BeginRollout(iteration) in self.log
            case step.GoOnTraining(iteration):
                assert self.log[-1] == step.SettleSamples(iteration)
            case step.BeginExploration(iteration):
                if self.schedule.explores == "fresh":
                    assert iteration in self.published, "explored before there are fresh weights"
                else:
                    assert iteration - 1 in self.published, "explored with older weights"
                    assert step.BeginTraining(iteration - 1) in self.log
                    is_late = iteration - 1 in self.reused
                    assert is_late or self.log[-1] == step.BeginTraining(iteration - 1)
            case step.PublishWeights(version) if version > self.completed:
                assert version - 1 in self.published, "trained two publications ahead"
            case step.EndExploration(iteration):
                assert step.BeginExploration(iteration) in self.log
            case step.BeginValidation(version):
                assert version in self.published
                assert version not in self.on_record
            case step.RecordIteration(iteration):
                assert self.machine.completed == iteration + 1
                assert (
                    iteration + 1 in self.chosen
                    or iteration + 1 == self.schedule.iterations
                    or self.schedule.explores == "fresh"
                )
            case step.CommitProgress(completed):
                assert completed in self.saved, "committed before it is durable"
                assert self.wanted_before(completed) <= self.on_record
            case step.ExportWeights():
                assert not self.pending, "exported with work left"
                assert versions(self.schedule) <= self.on_record, "exported before all is judged"
                assert self.machine.committed == self.schedule.iterations
            case step.Finish():
                assert not self.pending, "finished with work left"
                assert step.ExportWeights() in self.log
                assert self.schedule.iterations in self.published

    def wanted_before(self, completed: int) -> set[int]:
        """Versions that must be on record when a commit says so many iterations are done."""
        last = completed == self.schedule.iterations
        return {version for version in versions(self.schedule) if version < completed or last}

    @property
    def commits(self) -> list[int]:
        return [entry.completed for entry in self.log if isinstance(entry, step.CommitProgress)]

    def key(self) -> object:
        """Runs with the same key go on alike."""
        return (
            repr(self.machine),
            frozenset(Counter(map(repr, self.log)).items()),
            frozenset(map(repr, self.pending)),
        )


def versions(schedule: Schedule) -> set[int]:
    """What a whole run validates."""
    return {version for version in range(schedule.iterations + 1) if schedule.validates(version)}


def complete(run: Run, choose=min) -> Run:
    while run.pending:
        run.happen(choose(run.possible()))
    return run


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


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=150, deadline=None)
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


def events(run: Run, *wanted: type[Instruction]) -> Run:
    """Let the first pending instruction of each type be carried out, in the order named."""
    for kind in wanted:
        run.happen([type(entry) for entry in run.pending].index(kind))
    return run


ONE_ITERATION = (step.PublishWeights, step.BeginRollout, step.BeginTraining)


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
