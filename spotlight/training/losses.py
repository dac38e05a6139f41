"""Update rules behind one seam.

A rule turns samples into terms - one forward pass row each - and the model's velocities of these
rows into one loss per row. Dealing out, micro-batches, ranks and optimizer steps are the trainer's.

Convention: x_s = (1 - s) * x0 + s * eps, and the model predicts v = eps - x0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.noise import initial_noise
from spotlight.diffusion.transitions import log_prob, transition
from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.training.batches import TrainingBatch

_TIMES_STREAM = 2**64 - 1
"""The Philox stream of the flow times; noise uses the small ones."""
_SMALLEST_SCALE = 1e-5
"""Lower bound of DiffusionNFT's adaptive weight."""


@dataclass(frozen=True)
class Terms:
    """M rows of forward passes and what their outputs are compared with."""

    samples: Tensor
    """[M] int64: rows of the batch."""
    latents: Tensor
    """[M, T, C] float32: what the model sees."""
    sigmas: Tensor
    """[M] float32: the flow times of `latents`."""
    targets: Tensor
    """[M, T, C] float32: the velocity eps - x0 (DiffusionNFT) or the next latents (Flow-GRPO)."""
    advantages: Tensor
    """[M] float32"""
    steps: Tensor
    """[M] int64: the step of the schedule that is replayed; 0 for DiffusionNFT."""
    log_probs: Tensor
    """[M] float32: of the step under the weights that sampled it; 0 for DiffusionNFT."""

    def __len__(self) -> int:
        return self.samples.shape[0]

    def select(self, index: Tensor, device: torch.device) -> Terms:
        """The rows at `index`, on `device`."""
        return Terms(*(getattr(self, field.name)[index].to(device) for field in fields(self)))


class Loss(Protocol):
    """An update rule."""

    metrics: tuple[str, ...]
    """What `evaluate` reports beside the loss."""
    uses_old_policy: bool
    """Whether `evaluate` reads the velocities of the weights that sampled."""
    replays: bool
    """Whether rows repeat the sampler's forward passes, and so must run at one fixed batch size."""

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """The rows for these samples of the batch; `keys` decide the random choices of each."""
        ...

    def evaluate(
        self, terms: Terms, velocity: Tensor, old: Tensor, reference: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Losses [M], differentiable in `velocity` [M, T, C], and detached metrics [M, metrics].

        `old` and `reference` are the velocities of the sampling and of the initial weights.
        """
        ...


def build_loss(model: DiffusionModel, training: TrainingSpec, sampler: SamplerSpec) -> Loss:
    """The update rule of a job; raises `JobError` when its sampler has no schedule."""
    sigmas = model.sigmas(sampler.steps, sampler.height, sampler.width, sampler.shift)
    if training.loss == "diffusion_nft":
        return DiffusionNFT(training, sigmas)
    return FlowGRPO(training, sampler, sigmas)


class DiffusionNFT:
    """DiffusionNFT, arXiv 2509.16117: contrast an implicit positive and negative policy.

    For x_s of a sample x0 with fresh noise eps, and with b = `nft_strength`, c = `advantage_clip`:

        r  = clip(A / (2c) + 1/2, 0, 1)
        v+ = (1 - b) * v_old + b * v,   v- = (1 + b) * v_old - b * v
        L(u) = mean((x0_u - x0)^2) / w, x0_u = x_s - s * u, w = max(mean|x0_u - x0|, 1e-5) detached
        loss = c * (r * L(v+) / b + (1 - r) * L(v-) / b) + kl * mean((v - v_ref)^2)

    The flow times of a sample are drawn from the times of the sampler's schedule, without
    replacement until all are used: training happens exactly where sampling evaluates the model, as
    in the authors' code, and a sample's times are spread rather than clustered.
    """

    metrics: tuple[str, ...] = ("velocity_change", "kl")
    uses_old_policy = True
    replays = False

    def __init__(self, training: TrainingSpec, sigmas: Tensor) -> None:
        """`sigmas` [steps + 1] is the rollout's schedule."""
        self._strength = training.nft_strength
        self._clip = training.advantage_clip
        self._kl = training.kl
        self._times = training.nft_times
        self._sigmas = sigmas[:-1]

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """`nft_times` rows per sample."""
        times = self._times
        rows = torch.tensor(samples, dtype=torch.long).repeat_interleave(times)
        noise = initial_noise(keys, (times, *batch.latents.shape[1:])).flatten(0, 1)
        sigmas = self._sigmas[self._draw_times(keys)].flatten()
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

    def evaluate(
        self, terms: Terms, velocity: Tensor, old: Tensor, reference: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """See the class; x0_u - x0 = s * (eps - x0 - u) saves the detour over x0."""
        strength = self._strength
        share = (terms.advantages / (2 * self._clip) + 0.5).clamp(0, 1)
        change = strength * (velocity - old)
        miss = terms.targets - old
        positive = _adaptive_error(miss - change, terms.sigmas)
        negative = _adaptive_error(miss + change, terms.sigmas)
        loss = self._clip / strength * (share * positive + (1 - share) * negative)
        kl = torch.zeros_like(loss)
        if reference is not None:
            kl = _mean((velocity - reference) ** 2)
            loss = loss + self._kl * kl
        with torch.no_grad():
            return loss, torch.stack([_mean((change / strength) ** 2), kl.detach()], dim=1)

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


class FlowGRPO:
    """Flow-GRPO with an SDE window, arXiv 2505.05470: replay the sampler's noisy steps.

        ratio = exp(log p(x' | x) - log p_old(x' | x))
        loss  = max(-A * ratio, -A * clip(ratio, 1 - e, 1 + e)) + kl * KL
        KL    = mean((mu - mu_ref)^2) / (2 * std^2)

    mu, std and log p are the sampler's own functions (Flow-SDE or CPS), so the ratio is exactly 1
    before the first update. In the KL of Flow-SDE the factor dt of std^2 is dropped, as its authors
    do.
    """

    metrics: tuple[str, ...] = ("ratio_deviation", "clipped", "kl")
    uses_old_policy = False
    replays = True

    def __init__(self, training: TrainingSpec, sampler: SamplerSpec, sigmas: Tensor) -> None:
        """`sigmas` [steps + 1] is the rollout's schedule."""
        self._kind = sampler.kind
        self._noise_level = sampler.noise_level
        self._clip_range = training.clip_range
        self._clip = training.advantage_clip
        self._kl = training.kl
        self._sigmas = sigmas

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """One row per sample and window step; nothing is random.

        Raises `ValueError` when the batch has no window or one that the schedule does not have.
        """
        states, log_probs, start = batch.window_states, batch.log_probs, batch.window_start
        if states is None or log_probs is None:
            raise ValueError("window_states: flow_grpo needs the window of every sample")
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

    def evaluate(
        self, terms: Terms, velocity: Tensor, old: Tensor, reference: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """See the class."""
        mean, std = self._step(terms, velocity)
        ratio = torch.exp(log_prob(self._kind, terms.targets, mean, std) - terms.log_probs)
        advantages = terms.advantages.clamp(-self._clip, self._clip)
        bounded = ratio.clamp(1 - self._clip_range, 1 + self._clip_range)
        loss = torch.maximum(-advantages * ratio, -advantages * bounded)
        kl = torch.zeros_like(loss)
        if reference is not None:
            reference_mean, _ = self._step(terms, reference)
            kl = _mean((mean - reference_mean) ** 2) / (2 * self._kl_variance(terms, std))
            loss = loss + self._kl * kl
        with torch.no_grad():
            clipped = (-advantages * bounded > -advantages * ratio).to(loss.dtype)
            return loss, torch.stack([(ratio - 1).abs(), clipped, kl.detach()], dim=1)

    def _step(self, terms: Terms, velocity: Tensor) -> tuple[Tensor, Tensor]:
        return transition(
            self._kind,
            self._noise_level,
            terms.latents,
            velocity,
            self._sigmas,
            terms.steps,
        )

    def _kl_variance(self, terms: Terms, std: Tensor) -> Tensor:
        variance = std.flatten() ** 2
        if self._kind == "flow_sde":
            sigmas = self._sigmas.to(variance.device)
            return variance / (sigmas[terms.steps] - sigmas[terms.steps + 1])
        return variance


def _adaptive_error(miss: Tensor, sigmas: Tensor) -> Tensor:
    """L(u) [M] of DiffusionNFT for `miss` = eps - x0 - u, [M, T, C]."""
    error = sigmas.view(-1, 1, 1) * miss
    scale = error.detach().abs().flatten(1).mean(dim=1, dtype=torch.float64)
    return _mean(error**2) / scale.clamp(min=_SMALLEST_SCALE).float()


def _mean(values: Tensor) -> Tensor:
    """[M]: the mean over all but the first dimension."""
    return values.flatten(1).mean(dim=1)
