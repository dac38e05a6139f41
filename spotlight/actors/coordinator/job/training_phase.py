"""The update of an iteration: the ranks train on its samples until all have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.job.rollout import training_samples, weights_by_group
from spotlight.actors.coordinator.tenant.request_plans import window_start
from spotlight.policies.advantages import contrasting_groups
from spotlight.policies.trainer_orders import IterationTrained, Train
from spotlight.policies.training_parts import Part
from spotlight.types import Result

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class TrainingPhase:
    """See the module's docstring."""

    def __init__(self, job: JobRunner) -> None:
        self._job, self._spec = job, job.spec

    def begin(self, iteration: int) -> None:
        """Send the samples with their advantages to all ranks; of an iteration that is trained in
        two parts, those of the first. It is trained whole where one part has none: all groups of
        it may have been dropped."""
        samples, later = self._job.rollouts.rollout.samples(), self._later
        in_later = {sample.request.group in later for sample in samples}
        self._train(iteration, "first" if len(in_later) == 2 else "whole")

    def go_on(self, iteration: int) -> None:
        """Send those of the later part."""
        self._train(iteration, "rest")

    def ended(self, trained: IterationTrained) -> None:
        """All ranks have taken their optimizer steps."""
        self._job.gradients.end()
        # They may have begun, or ended, before this coordinator did.
        seconds = max(self._job.phase.seconds, trained.seconds)
        self._job.progress.end_training(seconds, dict(trained.metrics))
        self._job.trained(trained.iteration)

    @property
    def _later(self) -> frozenset[int]:
        return frozenset(self._job.progress.exploration.latest.later)

    def _train(self, iteration: int, part: Part) -> None:
        """Advantages are by all samples of the iteration, as they are now."""
        results = self._job.rollouts.rollout.samples()
        samples = training_samples(results, self._spec.rewards, self._spec.training)
        trained = self._trained(results, part)
        wanted = tuple(
            sample
            for sample, result in zip(samples, results, strict=True)
            if result.request.group in trained
        )
        if part == "rest":
            trained |= self._trained(results, "first")
        if part != "first":
            left_out = sum(result.request.group not in trained for result in results)
            self._job.progress.metrics.samples_left_out = left_out
        first_step = window_start(self._spec, iteration)
        self._job.gradients.begin(iteration, wanted, first_step)
        self._job.team.order(Train(iteration, first_step, wanted, part))

    def _trained(self, results: Sequence[Result], part: Part) -> frozenset[int]:
        """The prompt groups of a part whose rewards vary enough, among those of that part: what is
        chosen of the first must not depend on the later one, whose rewards are not there yet."""
        later, spec = self._later, self._spec
        own = [
            result
            for result in results
            if part == "whole" or (result.request.group in later) == (part == "rest")
        ]
        return contrasting_groups(
            [result.rewards for result in own],
            [result.request.group for result in own],
            spec.reward_weights,
            spec.training.variance_share,
            weights_by_group(own, spec.rewards),
        )
