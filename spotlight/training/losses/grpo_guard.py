"""GRPO-Guard: Flow-GRPO with a ratio that is centred on 1 and spreads alike in every step."""

from __future__ import annotations

import torch
from torch import Tensor

from spotlight.jobs.losses import LOSSES
from spotlight.training.losses.base import Terms, Velocities, row_mean
from spotlight.training.losses.flow_grpo import FlowGRPO


class GRPOGuard(FlowGRPO):
    """GRPO-Guard, arXiv 2510.22319.

        b     = mean((mu - mu_old)^2) / (2 * std^2)
        ratio = exp((log p(x' | x) - log p_old(x' | x) + b) * std)
        loss  = max(-A * ratio, -A * clip(ratio, 1 - e, 1 + e)) / (s - s') + kl * KL

    b is what the log-ratio falls short of 0 on average, so that both sides of the clip work; the
    factor std makes the ratio of every step spread alike, and the division its gradient as large.
    """

    Options = LOSSES["grpo_guard"].options
    samplers = LOSSES["grpo_guard"].samplers
    uses_old_policy = True

    def ratio(self, terms: Terms, velocities: Velocities, mean: Tensor, std: Tensor) -> Tensor:
        """See `FlowGRPO`."""
        old_mean, _ = self._replayed.step(terms, velocities.old)
        spread = std.flatten()
        bias = row_mean((mean - old_mean) ** 2) / (2 * spread**2)
        change = self._replayed.log_prob(terms, mean, std) - terms.log_probs
        return torch.exp((change + bias) * spread)

    def weigh(self, losses: Tensor, terms: Terms) -> Tensor:
        """See `FlowGRPO`."""
        return losses / self._replayed.length(terms)
