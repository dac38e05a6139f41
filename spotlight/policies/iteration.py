"""The iteration state machine: events in, instructions out.

  start -> publish 0 -> rollout 0 -> train 0 -> publish 1 -> ... -> publish N -> export -> finish
                                     explore 1 (with weights 0, while training)

  start -> publish 0 -> explore 0 -> rollout 0 -> train 0 -> publish 1 -> ...   (with fresh weights)

  start -> publish 0 -> rollout 0 -> train 0 -> train 1 -> ... -> publish N     (with reuse)
                                     explore 1  publish 1, then explore 2

Where the previews are the samples an iteration may be trained in two parts: the later one's samples
are settled when the first is trained.

An iteration begins when its weights are published and its seeds are chosen. With reuse the previews
are its samples, so it need not wait for its weights: only the exploration for the next iteration
does. Training is never more than one publication ahead. Validation runs beside
everything else. The state that a resumed run starts from is committed only when the checkpoint is
durable and no older validation is still open, so that a resumed run reports exactly what an
uninterrupted one does. The last commit waits for every validation; after it the best weights are
exported, and the job is finished.

Weights that are validated are saved, too: what has a score can be exported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Exploration = Literal["never", "ahead", "fresh"]
"""`ahead` explores for the next iteration while training; `fresh` explores for an iteration as soon
as its weights are published."""


@dataclass(frozen=True)
class Schedule:
    """What a job does when."""

    iterations: int
    validate_every: int
    checkpoint_every: int
    explores: Exploration
    is_repeatable: bool = False
    """Whether the run is to have the same bits however it comes about: in one go, or continued
    after its end."""

    @property
    def keeps_before_last(self) -> bool:
        """Whether the checkpoint before the last iteration is kept. The last one ends without
        exploring for the next: a run that goes on after it does it again."""
        return self.is_repeatable and self.explores == "ahead"

    def validates(self, version: int) -> bool:
        """Whether this weights version is validated: the first, the last and every n-th one."""
        return version % self.validate_every == 0 or version == self.iterations

    def saves(self, completed: int) -> bool:
        """Whether a checkpoint is due after so many iterations: after every n-th, where the weights
        are validated, and perhaps before the last."""
        is_before_last = self.keeps_before_last and completed == self.iterations - 1
        return completed % self.checkpoint_every == 0 or self.validates(completed) or is_before_last


@dataclass(frozen=True)
class PublishWeights:
    """Make the trainer's weights available to all nodes as this version."""

    version: int
    validated: bool


@dataclass(frozen=True)
class BeginRollout:
    """Denoise and score the chosen seeds of this iteration."""

    iteration: int


@dataclass(frozen=True)
class BeginTraining:
    """Train on this iteration's samples."""

    iteration: int


@dataclass(frozen=True)
class SettleSamples:
    """Choose the samples of the later part of an iteration for good."""

    iteration: int


@dataclass(frozen=True)
class GoOnTraining:
    """Train on them."""

    iteration: int


@dataclass(frozen=True)
class BeginExploration:
    """Explore the prompts of this iteration with the weights published last."""

    iteration: int


@dataclass(frozen=True)
class EndExploration:
    """Stop exploring for this iteration and choose."""

    iteration: int


@dataclass(frozen=True)
class BeginValidation:
    """Denoise and score the validation prompts with these weights."""

    version: int


@dataclass(frozen=True)
class RecordIteration:
    """Write down the figures of an iteration."""

    iteration: int


@dataclass(frozen=True)
class SaveProgress:
    """Write a checkpoint after so many completed iterations; other trainers can go on from it."""

    completed: int


@dataclass(frozen=True)
class KeepState:
    """Have other trainers be able to go on after so many completed iterations, if these are lost;
    without a checkpoint."""

    completed: int


@dataclass(frozen=True)
class CommitProgress:
    """From now on a resumed run starts after so many completed iterations."""

    completed: int


@dataclass(frozen=True)
class ExportWeights:
    """Write the weights with the best validation in a format that others load."""


@dataclass(frozen=True)
class Finish:
    """The job is done."""


Instruction = (
    PublishWeights
    | BeginRollout
    | BeginTraining
    | SettleSamples
    | GoOnTraining
    | BeginExploration
    | EndExploration
    | BeginValidation
    | RecordIteration
    | SaveProgress
    | KeepState
    | CommitProgress
    | ExportWeights
    | Finish
)


@dataclass
class IterationMachine:
    """Progress of one job. Methods are events; each returns the instructions that follow, in order.

    Args:
        schedule: what is due when.
        completed: iterations done before (0 for a fresh start).
        committed: those of the checkpoint that is on record; as many if not given.
        validated: weights versions whose validation is on record already.
        validating: earlier ones whose validation is still open.
    """

    schedule: Schedule
    completed: int = 0
    validated: frozenset[int] = frozenset()
    committed: int = -1
    validating: frozenset[int] = frozenset()
    _published: int = -1
    _chosen: int = field(init=False)
    _samples_are_there: bool = False
    """Nothing of the chosen iteration must be denoised, so it needs no new weights."""
    _exploring: int | None = None
    _to_explore: int | None = None
    """An iteration whose exploration waits for the weights."""
    _trained: int | None = None
    """An iteration that is trained before its own weights were published."""
    _open_validations: set[int] = field(default_factory=set)
    _saved: set[int] = field(default_factory=set)
    _exporting: bool = False

    def __post_init__(self) -> None:
        self._chosen = -1 if self.schedule.explores == "fresh" else self.completed
        if self.committed < 0:
            self.committed = self.completed

    @property
    def previews_of(self) -> int | None:
        """The weights version whose previews alone are waited for; None while there is none."""
        waits = self._exploring is not None and self._exploring == self.completed
        return self.completed - 1 if waits and self.schedule.explores == "ahead" else None

    @property
    def needs_weights_of(self) -> frozenset[int]:
        """The weights versions that are still needed though trainers have trained on from them:
        those of previews that alone are waited for, and of open validations."""
        validated = {version for version in self._open_validations if version < self.completed}
        previewed = set() if self.previews_of is None else {self.previews_of}
        return frozenset(validated | previewed)

    def start(self) -> list[Instruction]:
        """The trainer is ready; seeds for the first iteration are known."""
        again = sorted(v for v in self.validating if self._must_validate(v))
        self._open_validations.update(again)
        return [*(BeginValidation(version) for version in again), self._publish()]

    def weights_published(self, version: int) -> list[Instruction]:
        """Nodes can pull this version."""
        self._published = version
        instructions: list[Instruction] = []
        if self._must_validate(version):
            self._open_validations.add(version)
            instructions.append(BeginValidation(version))
        if self.schedule.explores == "fresh" and version < self.schedule.iterations:
            instructions += [BeginExploration(version), EndExploration(version)]
        if self._to_explore is not None:
            instructions.append(self._explore(self._to_explore))
        if self._trained is not None:
            instructions += self.trained(self._trained)
        return [*instructions, *self._commit(), *self._proceed()]

    def rolled_out(self, iteration: int) -> list[Instruction]:
        """All samples of the iteration are scored or given up."""
        instructions: list[Instruction] = [BeginTraining(iteration)]
        following = iteration + 1
        if following < self.schedule.iterations:
            if self.schedule.explores == "ahead" and self._published == iteration:
                instructions.append(self._explore(following))
            elif self.schedule.explores == "ahead":
                self._to_explore = following
            elif self.schedule.explores == "never":
                self._chosen = following
        return instructions

    def first_trained(self, iteration: int) -> list[Instruction]:
        """All ranks have taken the optimizer steps of the first part of an iteration."""
        return [SettleSamples(iteration), GoOnTraining(iteration)]

    def trained(self, iteration: int) -> list[Instruction]:
        """All ranks have taken their optimizer steps."""
        if self._published < iteration:
            self._trained = iteration
            return []
        self._trained = None
        self.completed = iteration + 1
        instructions: list[Instruction] = []
        if self._exploring is not None:
            instructions.append(EndExploration(self._exploring))
        instructions.append(self._publish())
        if self._exploring is None:
            instructions += self._after_iteration()
        return instructions

    def explored(self, iteration: int, samples_are_there: bool = False) -> list[Instruction]:
        """The seeds of the next iteration are chosen; with reuse their samples may all be there."""
        self._chosen, self._samples_are_there = iteration, samples_are_there
        instructions: list[Instruction] = []
        if self._exploring is not None:
            self._exploring = None
            instructions += self._after_iteration()
        return [*instructions, *self._proceed()]

    def validation_done(self, version: int) -> list[Instruction]:
        """The score of a weights version is on record."""
        self._open_validations.discard(version)
        return [*self._commit(), *self._proceed()]

    def progress_saved(self, completed: int) -> list[Instruction]:
        """The checkpoint is durable."""
        if completed > self.committed:
            self._saved.add(completed)
        return [*self._commit(), *self._proceed()]

    def exported(self) -> list[Instruction]:
        """The best weights are written."""
        return [Finish()]

    def _explore(self, iteration: int) -> BeginExploration:
        self._exploring, self._to_explore = iteration, None
        return BeginExploration(iteration)

    def _publish(self) -> PublishWeights:
        return PublishWeights(self.completed, self._must_validate(self.completed))

    def _must_validate(self, version: int) -> bool:
        return self.schedule.validates(version) and version not in self.validated

    def _after_iteration(self) -> list[Instruction]:
        saves = self.schedule.saves(self.completed)
        save = SaveProgress(self.completed) if saves else KeepState(self.completed)
        return [RecordIteration(self.completed - 1), save]

    def _commit(self) -> list[Instruction]:
        """The newest checkpoint that may be committed, if any; older ones are then pointless."""
        ready = [completed for completed in self._saved if self._may_commit(completed)]
        if not ready:
            return []
        self.committed = max(ready)
        self._saved = {completed for completed in self._saved if completed > self.committed}
        return [CommitProgress(self.committed)]

    def _may_commit(self, completed: int) -> bool:
        if completed == self.schedule.iterations:
            # The checkpoint may be durable before the last weights are published, let alone judged.
            return self._published == completed and not self._open_validations
        return all(version >= completed for version in self._open_validations)

    def _proceed(self) -> list[Instruction]:
        """Begin the next iteration, or export, as soon as nothing is missing."""
        if self.completed == self.schedule.iterations:
            over = self.committed == self._published == self.completed
            if not over or self._open_validations or self._exporting:
                return []
            self._exporting = True
            return [ExportWeights()]
        has_weights = self._published == self.completed or self._samples_are_there
        if has_weights and self.completed == self._chosen:
            self._chosen, self._samples_are_there = -1, False
            return [BeginRollout(self.completed)]
        return []
