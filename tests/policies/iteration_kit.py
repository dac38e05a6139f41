"""A run whose events a test lets happen in any order, for the tests of iterations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spotlight.policies import iteration as step
from spotlight.policies.iteration import Instruction, IterationMachine, Schedule

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


def events(run: Run, *wanted: type[Instruction]) -> Run:
    """Let the first pending instruction of each type be carried out, in the order named."""
    for kind in wanted:
        run.happen([type(entry) for entry in run.pending].index(kind))
    return run


ONE_ITERATION = (step.PublishWeights, step.BeginRollout, step.BeginTraining)
