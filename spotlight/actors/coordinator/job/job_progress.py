"""How far a job is: what its iteration began with, what was learnt since, and what was measured.

What a kill must not undo is in the journal when a call returns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from spotlight.actors.coordinator.job.job_record import JobRecord
from spotlight.actors.coordinator.job.mirroring import Mirroring
from spotlight.actors.coordinator.tenant.job_journal import Checkpoint, JobJournal, SavedProgress
from spotlight.actors.coordinator.tenant.request_plans import exploration_settings, unexplored
from spotlight.jobs import JobSpec
from spotlight.policies import iteration as step
from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.finishing import mislead
from spotlight.policies.exploration.record import ExplorationRecord, WindowPredictor
from spotlight.policies.step_times import StepTimes
from spotlight.record.run_metrics import IterationMetrics
from spotlight.store.run_folder import checkpoint_path


class JobProgress:
    """See the module's docstring. It begins after the last iteration that the journal knows.

    Args:
        categories: of training prompts.
        mirroring: copies the run when it can be gone on with from a checkpoint.
    """

    def __init__(
        self,
        job: JobSpec,
        categories: Mapping[str, str],
        *,
        journal: JobJournal,
        record: JobRecord,
        mirroring: Mirroring,
    ) -> None:
        self._mirroring = mirroring
        self._job = job
        self._categories = categories
        self._journal = journal
        self._record = record
        self.schedule = step.Schedule(
            job.iterations,
            job.validation.every,
            job.checkpoint_every,
            explores=_explores(job),
            is_repeatable=job.exploration.budget == "fixed",
        )
        self.training: dict[str, float] = {}
        """Metrics of the last update."""
        self.begin_at(max(journal.progress(), default=0))

    def begin_at(self, completed: int) -> None:
        """Be where an iteration began, as the journal has it."""
        known = self._journal.progress().get(completed)
        self.saved = known or SavedProgress(0, unexplored(self._job, 0), ())
        self.window = WindowPredictor(self.saved.training_seconds)
        self.exploration = ExplorationRecord(
            exploration_settings(self._job),
            self.saved.explored,
            self._journal.knowledge(completed),
            categories=self._categories,
            agreement=self.saved.agreement,
            gain=self.saved.gain,
            worth=self.saved.worth,
        )
        self.metrics = IterationMetrics(iteration=completed)
        self.random_credit = self.saved.random_credit
        """Denoising steps that random groups may take before others; see `Credit`."""
        self.least_previews = 0
        """How many previews the exploration after the next iteration's beginning waits for."""
        self.flat_iterations = self.saved.flat_iterations
        """How many iterations in a row had nothing but equal rewards, with the latest rollout."""

    def rewind_to(self, completed: int) -> None:
        """The same for trainers that go on from a state, so nothing is validated again."""
        validated = tuple(v for v in self.saved.validated if v <= completed)
        self.begin_at(completed)
        self.saved = msgspec.structs.replace(self.saved, validated=validated)

    @property
    def previews_mislead(self) -> bool:
        """Whether previews of fewer steps foretell too little of what is finished, so that they
        take all steps. It is by what was on record when the iteration began: whatever is done again
        since, the previews of an iteration are alike."""
        return self._job.exploration.finish == "previous" and mislead(self.saved.agreement)

    @property
    def unvalidated(self) -> tuple[int, ...]:
        """Versions so far that are to be validated, and have no score."""
        versions = range(self.saved.completed + 1)
        due = filter(self.schedule.validates, versions)
        return tuple(version for version in due if version not in self.saved.validated)

    @property
    def previews(self) -> tuple[int, int]:
        """So far, those that counted and those that came too late: of the iterations on record, and
        of the one that is under way. The journal has them, so a kill takes none back."""
        explored = self.saved.explored
        by_iteration = {explored.iteration: (explored.previews, explored.late)}
        counted, late = zip(*(by_iteration | self._record.run.previews).values(), strict=True)
        return sum(counted), sum(late)

    @property
    def committed(self) -> int:
        """Iterations in the checkpoint that lost trainers begin again from."""
        checkpoint = self._journal.checkpoint()
        return checkpoint.completed if checkpoint else 0

    def machine(self, published: Collection[int]) -> step.IterationMachine:
        """The iteration machine from here on; these weights versions can be pulled."""
        completed, validated = self.saved.completed, frozenset(self.saved.validated)
        return step.IterationMachine(
            self.schedule,
            completed=completed,
            committed=self.committed,
            validated=validated,
            validating=frozenset(v for v in published if v < completed) - validated,
        )

    def keep(self) -> None:
        """A run that is gone on with begins here; metrics of what is done again are dropped."""
        completed, validated = self.saved.completed, self.saved.validated
        self._record.write(lambda: self._record.run.rewind(completed, validated))
        self._record.write(lambda: self._journal.records_follow(self.saved))
        for segment in self._record.run.segments_begun():
            self._record.event(segment)
        self._mirroring.take(self.committed)

    def open_metrics(self, iteration: int) -> IterationMetrics:
        """The metrics of that iteration, which are new ones for a new iteration."""
        if self.metrics.iteration != iteration:
            self.metrics = IterationMetrics(iteration=iteration)
        return self.metrics

    def note_flat(self, is_flat: bool) -> None:
        """The samples of the iteration are there; whether they all have the same reward."""
        self.flat_iterations = self.saved.flat_iterations + 1 if is_flat else 0

    def add_validated(self, version: int) -> None:
        """A weights version is validated."""
        validated = tuple(sorted({*self.saved.validated, version}))
        self.saved = msgspec.structs.replace(self.saved, validated=validated)
        self._save()

    def settle(self, explored: Explored) -> None:
        """The later seeds of the iteration are chosen for good: a kill does not undo it."""
        self.exploration.accept(explored)
        self.saved = msgspec.structs.replace(self.saved, explored=explored)
        self._save()

    def end_training(self, seconds: float, metrics: dict[str, float]) -> None:
        """The update of the iteration is done."""
        self.metrics.train_s = seconds
        self.window.record(seconds)
        self.training = metrics

    def end_iteration(self, iteration: int, scoring_s: float, step_times: StepTimes) -> None:
        """The next iteration is settled: from now on a kill resumes there.

        Args:
            scoring_s: time that scoring took since the iteration before, all workers together.
            step_times: what is known of how long steps take.
        """
        exploration = self.exploration
        self.saved = SavedProgress(
            completed=iteration + 1,
            explored=exploration.latest,
            validated=self.saved.validated,
            training_seconds=self.window.durations,
            agreement=exploration.agreement,
            gain=exploration.gain,
            worth=exploration.worth_before,
            flat_iterations=self.flat_iterations,
            random_credit=self.random_credit,
            least_previews=self.least_previews,
        )
        self.metrics.scoring_s = scoring_s
        write, run = self._record.write, self._record.run
        self._record.iteration(self.metrics, self.training)
        write(lambda: run.save_step_times(step_times))
        write(run.sync)
        self._save()

    def commit(self, completed: int) -> None:
        """The checkpoint of so many iterations is the one to begin again from."""
        checkpoint = Checkpoint(completed, checkpoint_path(completed))
        validated = tuple(v for v in self.saved.validated if v <= completed)
        before = self._before_last(completed)
        self._record.write(lambda: self._journal.save_checkpoint(checkpoint, validated, before))
        last, also = self._job.keep_checkpoints, () if before is None else (before.completed,)
        self._record.write(
            lambda: self._record.run.keep_checkpoints(completed, last=last, also=also)
        )
        self._mirroring.take(completed)

    def _before_last(self, completed: int) -> SavedProgress | None:
        """How the last iteration began, if that is over with so many, and whoever wants a longer
        run is to begin there."""
        before = completed - 1
        known = self._journal.progress().get(before)
        is_over = self.schedule.keeps_before_last and completed == self._job.iterations
        if (
            not is_over
            or known is None
            or not (self._record.run.has_checkpoint(before) or not before)
        ):
            return None
        validated = tuple(v for v in self.saved.validated if v <= before)
        return msgspec.structs.replace(known, validated=validated)

    def _save(self) -> None:
        self._record.write(lambda: self._journal.save_progress(self.saved))


def _explores(job: JobSpec) -> step.Exploration:
    if job.exploration.mode == "none":
        return "never"
    return "fresh" if job.exploration.weights == "fresh" else "ahead"
