"""A job's model, scorer and trainer in one process: what its workers would compute, without them.

Samples and updates depend on (weights, prompt, seed, settings) and (weights, batch, job seed,
iteration) alone, so what is computed here is what a cluster computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spotlight.actors.coordinator.tenant.request_plans import window_start
from spotlight.assets import read_prompt_lines
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.noise import initial_noise
from spotlight.diffusion.progress import Progress
from spotlight.diffusion.samplers import SampleBatch, join_samples, resume
from spotlight.errors import ScoringError
from spotlight.jobs import JobSpec
from spotlight.permissions import Permissions
from spotlight.policies.advantages import mixed_advantages
from spotlight.policies.exploration.planners import derived_seed
from spotlight.policies.exploration.reward_scales import weighted_mean
from spotlight.rewards.base import build_scorer
from spotlight.rewards.validity import score_with
from spotlight.training.trainer import Trainer, TrainingBatch
from spotlight.types import SamplingSettings


@dataclass(frozen=True)
class ScoredSamples:
    """Some (prompt, seed) pairs, denoised and scored, in the order asked for."""

    batch: SampleBatch
    rewards: list[tuple[float, ...]]
    """The rewards of each sample, one of each that the job names."""
    scores: list[float]
    """The mean of these by their weights."""


class OneProcess:
    """See the module's docstring.

    Raises `CheckpointError`, `JobError` or `MissingDependency` when the job's model or reward
    cannot be used.
    """

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._scorers = [build_scorer(reward, Permissions.of(job)) for reward in job.rewards]
        self._prompts = {
            prompt.text: prompt
            for name in (job.prompts.train, job.prompts.validation)
            for prompt in read_prompt_lines(name).items
        }
        self._model = load_model(job.model)
        self.trainer = Trainer(
            self._model,
            job.training,
            job.sampler,
            seed=job.seed,
            iterations=job.iterations,
            reuse=job.trains_on_older,
        )

    def scored(
        self,
        weights: dict[str, Tensor],
        pairs: Sequence[tuple[str, int]],
        settings: SamplingSettings,
        *,
        other_noise: bool = False,
    ) -> Iterator[ScoredSamples]:
        """Denoise (prompt, seed) pairs with these weights (as `Trainer.rollout_state` gives them)
        and score them, a micro-batch at a time. With `other_noise` only the initial latents are the
        seed's own.

        Raises `ScoringError` and `NotFinite`.
        """
        self._model.load_trainable_state(weights)
        shape = self._model.latent_shape(settings.height, settings.width, settings.frames)
        for first in range(0, len(pairs), settings.micro_batch):
            part = pairs[first : first + settings.micro_batch]
            prompts, seeds = [prompt for prompt, _ in part], [seed for _, seed in part]
            noise = initial_noise(seeds, shape)
            if other_noise:
                seeds = [derived_seed(seed, "other noise") for seed in seeds]
            denoising = resume(self._model, prompts, seeds, settings, Progress.begin(noise))
            while not denoising.done:
                denoising.step()
            samples = denoising.result()
            size = settings.height, settings.width, settings.frames
            images = self._model.decode(samples.latents, *size)
            rewards = self._rewards(images, prompts)
            shares = self._job.reward_weights
            yield ScoredSamples(samples, rewards, [weighted_mean(each, shares) for each in rewards])

    def train(
        self,
        iteration: int,
        prompts: Sequence[str],
        groups: Sequence[int],
        samples: Sequence[ScoredSamples],
    ) -> dict[str, float]:
        """The optimizer steps of an iteration, with advantages from these samples' rewards; returns
        what `Trainer.train` does.

        Args:
            prompts, groups: one per sample.

        Raises `TrainingDiverged`.
        """
        training = self._job.training
        advantages = mixed_advantages(
            [rewards for part in samples for rewards in part.rewards],
            groups,
            self._job.reward_weights,
            baseline=training.advantage_baseline,
            std=training.advantage_std,
            clip=training.largest_advantage,
        )
        return self.update(iteration, prompts, [part.batch for part in samples], advantages)

    def update(
        self,
        iteration: int,
        prompts: Sequence[str],
        batches: Sequence[SampleBatch],
        advantages: Sequence[float],
        updates: range | None = None,
    ) -> dict[str, float]:
        """The same with advantages that are known, one per sample, and perhaps only some of the
        `updates`."""
        samples = join_samples(list(batches))
        return self.trainer.train(
            iteration,
            TrainingBatch(
                prompts=list(prompts),
                latents=samples.latents,
                advantages=torch.tensor(advantages),
                window_states=samples.window_states,
                log_probs=samples.log_probs,
                window_start=window_start(self._job, iteration),
            ),
            updates,
        )

    def _rewards(self, images: np.ndarray, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Those of each image; raises `ScoringError` after the job's number of attempts."""
        prompts = [self._prompts[text] for text in texts]
        for attempts_left in reversed(range(self._job.scoring.attempts)):
            try:
                columns = [
                    score_with(scorer, reward, images, prompts)
                    for scorer, reward in zip(self._scorers, self._job.rewards, strict=True)
                ]
                return list(zip(*columns, strict=True))
            except ScoringError:
                if not attempts_left:
                    raise
        raise AssertionError("a job has at least one attempt")
