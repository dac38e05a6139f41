"""GRPO-Guard: Flow-GRPO with a ratio that is centred on 1 and spreads alike in every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spotlight.jobs.losses import LOSSES
from spotlight.training.batches import TrainingBatch
from spotlight.training.losses.base import LossSetup, Terms, Velocities, row_mean
from spotlight.training.losses.rows import Replayed
from spotlight.training.losses.surrogate import clipped_surrogate

_CLIP_RANGE = 2e-6
"""Of the authors' OCR recipe."""


class GRPOGuard:
    """GRPO-Guard, arXiv 2510.22319.

        b     = mean((mu - mu_old)^2) / (2 * std^2)
        ratio = exp((log p(x' | x) - log p_old(x' | x) + b) * std)
        loss  = max(-A * ratio, -A * clip(ratio, 1 - e, 1 + e)) / (s - s') + kl * KL

    b is what the log-ratio falls short of 0 on average, so that both sides of the clip work; the
    factor std makes the ratio of every step spread alike, and the division its gradient as large.
    """

    samplers = LOSSES["grpo_guard"].samplers
    metrics = ("ratio_deviation", "clipped", "kl")
    uses_old_policy = True

    def __init__(self, setup: LossSetup) -> None:
        training = setup.training
        self._clip_range = training.clip_range or _CLIP_RANGE
        self._clip = training.advantage_clip
        self._kl = training.kl
        self._replayed = Replayed(setup)

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """One row per sample and window step; raises as `Replayed.terms` does."""
        return self._replayed.terms(batch, samples, keys)

    def evaluate(self, terms: Terms, velocities: Velocities) -> tuple[Tensor, dict[str, Tensor]]:
        """See the class."""
        replayed = self._replayed
        mean, std = replayed.step(terms, velocities.current)
        old_mean, _ = replayed.step(terms, velocities.old)
        spread = std.flatten()
        bias = row_mean((mean - old_mean) ** 2) / (2 * spread**2)
        change = replayed.log_prob(terms, mean, std) - terms.log_probs
        ratio = torch.exp((change + bias) * spread)
        advantages = terms.advantages.clamp(-self._clip, self._clip)
        loss, metrics = clipped_surrogate(ratio, advantages, self._clip_range)
        loss = loss / replayed.length(terms)
        kl = torch.zeros_like(loss)
        if velocities.reference is not None:
            kl = replayed.kl(terms, mean, std, velocities.reference)
            loss = loss + self._kl * kl
        return loss, metrics | {"kl": kl.detach()}
