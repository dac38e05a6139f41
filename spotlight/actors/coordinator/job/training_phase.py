"""The update of an iteration: the ranks train on its samples until all have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from spotlight.actors.coordinator.job.job_phase import JobPhase
from spotlight.actors.coordinator.job.job_progress import JobProgress
from spotlight.actors.coordinator.job.rollout import training_samples
from spotlight.actors.coordinator.job.rollout_phase import RolloutPhase
from spotlight.actors.coordinator.job.trainer_team import TrainerTeam
from spotlight.actors.coordinator.tenant.request_plans import window_start
from spotlight.actors.protocol import TrainedIteration
from spotlight.jobs import JobSpec
from spotlight.policies.training_parts import Part


class TrainingPhase:
    """See the module's docstring.

    Args:
        rollouts: has the samples.
        first_trained: called with the iteration whose first part all ranks have trained on.
        trained: called with the iteration that all ranks have trained on.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        team: TrainerTeam,
        phase: JobPhase,
        progress: JobProgress,
        rollouts: RolloutPhase,
        first_trained: Callable[[int], None],
        trained: Callable[[int], None],
    ) -> None:
        self._job = job
        self._team = team
        self._phase = phase
        self._progress = progress
        self._rollouts = rollouts
        self._first_trained = first_trained
        self._trained = trained
        self._answers: dict[tuple[int, Part], TrainedIteration] = {}
        """By rank and part."""

    def begin(self, iteration: int) -> None:
        """Send the samples with their advantages to all ranks; of an iteration that is trained in
        two parts, those of the first. It is trained whole where one part has none: all groups of
        it may have been dropped."""
        self._answers = {}
        samples, later = self._rollouts.rollout.samples(), self._later
        in_later = {sample.request.group in later for sample in samples}
        self._train(iteration, "first" if len(in_later) == 2 else "whole")

    def go_on(self, iteration: int) -> None:
        """Send those of the later part."""
        self._train(iteration, "rest")

    def rank_trained(self, rank: int, trained: TrainedIteration) -> None:
        """A rank has taken its optimizer steps; what is not of this iteration changes nothing."""
        if self._phase.name != "train" or trained.iteration != self._progress.metrics.iteration:
            return
        self._answers[rank, trained.part] = trained
        if not self._team.answered("train", (trained.iteration, trained.part), rank):
            return
        if trained.part == "first":
            return self._first_trained(trained.iteration)
        # It may have begun, or ended, before this coordinator did.
        by_rank: defaultdict[int, float] = defaultdict(float)
        for (each, _), answer in self._answers.items():
            by_rank[each] += answer.seconds
        seconds = max(self._phase.seconds, *by_rank.values())
        self._progress.end_training(seconds, self._answers[0, trained.part].metrics)
        self._trained(trained.iteration)

    @property
    def _later(self) -> frozenset[int]:
        return frozenset(self._progress.exploration.latest.later)

    def _train(self, iteration: int, part: Part) -> None:
        """Advantages are by all samples of the iteration, as they are now."""
        results, later = self._rollouts.rollout.samples(), self._later
        samples = training_samples(results, self._job.reward_weights, self._job.training)
        wanted = tuple(
            sample
            for sample, result in zip(samples, results, strict=True)
            if part == "whole" or (result.request.group in later) == (part == "rest")
        )
        self._team.train(iteration, window_start(self._job, iteration), wanted, part)
