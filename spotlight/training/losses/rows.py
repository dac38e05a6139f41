"""The two kinds of rows that losses train on: samples noised anew, and the noisy steps replayed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spotlight.diffusion.noise import initial_noise
from spotlight.diffusion.transitions import log_prob, transition
from spotlight.jobs.losses import NoisedOptions
from spotlight.training.batches import TrainingBatch
from spotlight.training.losses.base import LossSetup, Terms, row_mean

_TIMES_STREAM = 2**64 - 1
"""The Philox stream of the flow times; noise uses the small ones."""


class Noised:
    """Clean samples with fresh noise, at random times of the schedule, or only at the noisiest of
    them, as `NoisedOptions` say; those of a loss that has other options are the defaults.

    A sample's flow times are drawn without replacement until all are used: training happens exactly
    where sampling evaluates the model, as in DiffusionNFT's code, and they are spread rather than
    clustered. Those that `noisiest` leaves out are drawn too, with their noise, so
    that the rows which stay are the same as without it.
    """

    def __init__(self, setup: LossSetup) -> None:
        said = setup.options
        options = said if isinstance(said, NoisedOptions) else NoisedOptions()
        self._times = options.times
        self._trained = options.trained_times
        self._sigmas = setup.sigmas[:-1]

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """As many rows per sample as there are times to train on, in the order drawn; `targets` are
        the velocities eps - x0."""
        rows = torch.tensor(samples, dtype=torch.long).repeat_interleave(self._trained)
        drawn = self._sigmas[self._draw_times(keys)]
        by_noise = drawn.argsort(dim=1, descending=True, stable=True)
        own, trained = torch.arange(len(keys))[:, None], by_noise[:, : self._trained].sort().values
        noise = initial_noise(keys, (self._times, *batch.latents.shape[1:]))
        noise, sigmas = noise[own, trained].flatten(0, 1), drawn[own, trained].flatten()
        velocities = noise - batch.latents[rows]
        return Terms(
            samples=rows,
            latents=noise - (1 - sigmas).view(-1, 1, 1) * velocities,
            sigmas=sigmas,
            targets=velocities,
            advantages=batch.advantages[rows],
            steps=torch.zeros_like(rows),
            log_probs=torch.zeros_like(sigmas),
        )

    def _draw_times(self, keys: Sequence[int]) -> Tensor:
        """Indices into the schedule, [samples, times]."""
        steps, times = len(self._sigmas), self._times
        drawn = np.empty((len(keys), times), dtype=np.int64)
        for row, choice in zip(drawn, keys, strict=True):
            philox = np.random.Philox(key=np.array([choice, _TIMES_STREAM], dtype=np.uint64))
            generator = np.random.Generator(philox)
            rounds = [generator.permutation(steps) for _ in range(-(-times // steps))]
            row[:] = np.concatenate(rounds)[:times]
        return torch.from_numpy(drawn)


class Replayed:
    """Rows of the sampler's noisy steps, evaluated again with other velocities."""

    def __init__(self, setup: LossSetup) -> None:
        self._kind = setup.sampler.kind
        self._noise_level = setup.sampler.noise_level
        self._sigmas = setup.sigmas

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """One row per sample and step of the SDE window; `targets` are the latents after the step,
        and nothing is random.

        Raises `ValueError` when the batch has no window or one that the schedule does not have.
        """
        states, log_probs, start = batch.window_states, batch.log_probs, batch.window_start
        if states is None or log_probs is None:
            raise ValueError("window_states: this loss needs the window of every sample")
        length = states.shape[1] - 1
        if log_probs.shape[1] != length or not 0 <= start < start + length < len(self._sigmas):
            raise ValueError(
                f"window_states: {length} steps from step {start} on, with {log_probs.shape[1]}"
                f" log-probabilities, do not fit a schedule of {len(self._sigmas) - 1} steps"
            )
        rows = torch.tensor(samples, dtype=torch.long)
        steps = torch.arange(start, start + length).repeat(len(rows))
        return Terms(
            samples=rows.repeat_interleave(length),
            latents=states[rows, :-1].flatten(0, 1),
            sigmas=self._sigmas[steps],
            targets=states[rows, 1:].flatten(0, 1),
            advantages=batch.advantages[rows].repeat_interleave(length),
            steps=steps,
            log_probs=log_probs[rows].flatten(),
        )

    def step(self, terms: Terms, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [M, T, C] and standard deviation [M, 1, 1] of the latents after the step."""
        return transition(
            self._kind, self._noise_level, terms.latents, velocity, self._sigmas, terms.steps
        )

    def log_prob(self, terms: Terms, mean: Tensor, std: Tensor) -> Tensor:
        """Log-probability [M] of the latents that the sampler went on to."""
        return log_prob(self._kind, terms.targets, mean, std)

    @torch.no_grad()
    def log_prob_under(self, terms: Terms, velocity: Tensor) -> Tensor:
        """The same [M] for the policy with these velocities, without a gradient."""
        return self.log_prob(terms, *self.step(terms, velocity))

    def length(self, terms: Terms) -> Tensor:
        """s - s' [M] of the steps."""
        sigmas = self._sigmas.to(terms.steps.device)
        return sigmas[terms.steps] - sigmas[terms.steps + 1]

    def kl(self, terms: Terms, mean: Tensor, std: Tensor, reference: Tensor) -> Tensor:
        """mean((mu - mu_ref)^2) / (2 * std^2) [M] to the policy with the velocities `reference`.

        The factor dt of an SDE's variance is dropped, as Flow-GRPO's authors do.
        """
        reference_mean, _ = self.step(terms, reference)
        variance = std.flatten() ** 2
        if self._kind != "cps":
            variance = variance / self.length(terms)
        return row_mean((mean - reference_mean) ** 2) / (2 * variance)
