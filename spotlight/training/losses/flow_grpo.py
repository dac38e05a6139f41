"""Flow-GRPO: replay the sampler's noisy steps, and raise the probability of the better ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spotlight.jobs.losses import LOSSES
from spotlight.training.batches import TrainingBatch
from spotlight.training.losses.base import LossSetup, Terms, Velocities
from spotlight.training.losses.rows import Replayed
from spotlight.training.losses.surrogate import clipped_surrogate, truncated_weight


class FlowGRPO:
    """Flow-GRPO, arXiv 2505.05470, and with a window of few steps Flow-GRPO-Fast.

        ratio = exp(log p(x' | x) - log p_old(x' | x))
        loss  = max(-A * ratio, -A * clip(ratio, 1 - e, 1 + e)) + kl * KL
        KL    = mean((mu - mu_ref)^2) / (2 * std^2)

    mu, std and log p are the sampler's own functions, so the ratio is exactly 1 before the first
    update. With `cps` this is FlowCPS, with `dance_sde` DanceGRPO, with a sliding window MixGRPO.

    With `setup.reuse` the weights before the first update need not be those that sampled. The ratio
    is to the former, which the clip is to keep near; the surrogate counts by how probable they find
    the sample (decoupled PPO, arXiv 2110.00641, with truncated weights):

        ratio = exp(log p(x' | x) - log p_newest(x' | x))
        loss  = min(exp(log p_newest(x' | x) - log p_old(x' | x)), 2) * max(...) + kl * KL

    Where the weights are the same this is the loss above, to the bit. The log-probabilities are
    means over the latents, so the first factor is nearly 1 for any images but those of a few
    numbers: it does not make up for older weights, of which `exploration.reuse` bounds the drift.
    """

    Options = LOSSES["flow_grpo"].options
    samplers = LOSSES["flow_grpo"].samplers
    metrics: tuple[str, ...] = ("ratio_deviation", "clipped", "kl")
    uses_old_policy = False

    def __init__(self, setup: LossSetup) -> None:
        training = setup.training
        self._clip_range: float = setup.options.clip_range
        self._clip = training.largest_advantage
        self._kl = training.kl
        self._replayed = Replayed(setup)
        self._reuse = setup.reuse
        if setup.reuse:
            self.uses_old_policy = True
            self.metrics += ("reuse_weight", "reuse_truncated")

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """One row per sample and window step; raises as `Replayed.terms` does."""
        return self._replayed.terms(batch, samples, keys)

    def evaluate(self, terms: Terms, velocities: Velocities) -> tuple[Tensor, dict[str, Tensor]]:
        """See the class."""
        replayed = self._replayed
        mean, std = replayed.step(terms, velocities.current)
        weight: Tensor | float = 1.0
        correction: dict[str, Tensor] = {}
        if self._reuse:
            by_newest = replayed.log_prob_under(terms, velocities.old)
            weight, correction = truncated_weight(by_newest - terms.log_probs)
            terms = replace(terms, log_probs=by_newest)
        ratio = self.ratio(terms, velocities, mean, std)
        advantages = terms.advantages.clamp(-self._clip, self._clip)
        loss, metrics = clipped_surrogate(ratio, advantages, self._clip_range)
        loss = self.weigh(loss, terms) * weight
        kl = torch.zeros_like(loss)
        if velocities.reference is not None:
            kl = replayed.kl(terms, mean, std, velocities.reference)
            loss = loss + self._kl * kl
        return loss, metrics | {"kl": kl.detach()} | correction

    def ratio(self, terms: Terms, velocities: Velocities, mean: Tensor, std: Tensor) -> Tensor:
        """Of the policies [M], given those of the step: mean [M, T, C] and std [M, 1, 1]."""
        return torch.exp(self._replayed.log_prob(terms, mean, std) - terms.log_probs)

    def weigh(self, losses: Tensor, terms: Terms) -> Tensor:
        """The surrogate's losses [M], by how much each step counts."""
        return losses
