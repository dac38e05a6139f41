"""The update of an iteration: the ranks train on its samples until all have."""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.coordinator.job_phase import JobPhase
from spotlight.actors.coordinator.job_progress import JobProgress
from spotlight.actors.coordinator.request_plans import window_start
from spotlight.actors.coordinator.rollout import training_samples
from spotlight.actors.coordinator.rollout_phase import RolloutPhase
from spotlight.actors.coordinator.trainer_team import TrainerTeam
from spotlight.actors.protocol import TrainedIteration
from spotlight.jobs import JobSpec


class TrainingPhase:
    """See the module's docstring.

    Args:
        rollouts: has the samples.
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
        trained: Callable[[int], None],
    ) -> None:
        self._job = job
        self._team = team
        self._phase = phase
        self._progress = progress
        self._rollouts = rollouts
        self._trained = trained
        self._answers: dict[int, TrainedIteration] = {}
        """By rank."""

    def begin(self, iteration: int) -> None:
        """Send the samples with their advantages to all ranks."""
        samples = training_samples(
            self._rollouts.rollout.samples(), self._job.reward_weights, self._job.training
        )
        self._answers = {}
        self._team.train(iteration, window_start(self._job, iteration), samples)

    def rank_trained(self, rank: int, trained: TrainedIteration) -> None:
        """A rank has taken its optimizer steps; what is not of this iteration changes nothing."""
        if self._phase.name != "train" or trained.iteration != self._progress.metrics.iteration:
            return
        self._answers[rank] = trained
        if self._team.answered("train", trained.iteration, rank):
            # It may have begun, or ended, before this coordinator did.
            longest = max(answer.seconds for answer in self._answers.values())
            seconds = max(self._phase.seconds, longest)
            self._progress.end_training(seconds, self._answers[0].metrics)
            self._trained(trained.iteration)
