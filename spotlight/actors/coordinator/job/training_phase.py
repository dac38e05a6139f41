"""The update of an iteration: the ranks train on its samples until all have."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.job.rollout import training_samples
from spotlight.actors.coordinator.tenant.request_plans import window_start
from spotlight.actors.protocol import TrainedIteration
from spotlight.policies.training_parts import Part

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class TrainingPhase:
    """See the module's docstring."""

    def __init__(self, job: JobRunner) -> None:
        self._job, self._spec = job, job.spec
        self._answers: dict[tuple[int, Part], TrainedIteration] = {}
        """By rank and part."""

    def begin(self, iteration: int) -> None:
        """Send the samples with their advantages to all ranks; of an iteration that is trained in
        two parts, those of the first. It is trained whole where one part has none: all groups of
        it may have been dropped."""
        self._answers = {}
        samples, later = self._job.rollouts.rollout.samples(), self._later
        in_later = {sample.request.group in later for sample in samples}
        self._train(iteration, "first" if len(in_later) == 2 else "whole")

    def go_on(self, iteration: int) -> None:
        """Send those of the later part."""
        self._train(iteration, "rest")

    def rank_trained(self, rank: int, trained: TrainedIteration) -> None:
        """A rank has taken its optimizer steps; what is not of this iteration changes nothing."""
        if (
            self._job.phase.name != "train"
            or trained.iteration != self._job.progress.metrics.iteration
        ):
            return
        self._answers[rank, trained.part] = trained
        if not self._job.team.answered("train", (trained.iteration, trained.part), rank):
            return
        if trained.part == "first":
            return self._job.first_trained(trained.iteration)
        # It may have begun, or ended, before this coordinator did.
        by_rank: defaultdict[int, float] = defaultdict(float)
        for (each, _), answer in self._answers.items():
            by_rank[each] += answer.seconds
        seconds = max(self._job.phase.seconds, *by_rank.values())
        self._job.progress.end_training(seconds, self._answers[0, trained.part].metrics)
        self._job.trained(trained.iteration)

    @property
    def _later(self) -> frozenset[int]:
        return frozenset(self._job.progress.exploration.latest.later)

    def _train(self, iteration: int, part: Part) -> None:
        """Advantages are by all samples of the iteration, as they are now."""
        results, later = self._job.rollouts.rollout.samples(), self._later
        samples = training_samples(results, self._spec.reward_weights, self._spec.training)
        wanted = tuple(
            sample
            for sample, result in zip(samples, results, strict=True)
            if part == "whole" or (result.request.group in later) == (part == "rest")
        )
        self._job.team.train(iteration, window_start(self._spec, iteration), wanted, part)
