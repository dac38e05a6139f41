"""Advantage-weighted matching: policy gradients whose log-probability is the flow-matching loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spotlight.jobs.losses import LOSSES
from spotlight.training.batches import TrainingBatch
from spotlight.training.losses.base import LossSetup, Terms, Velocities, row_mean
from spotlight.training.losses.rows import Noised
from spotlight.training.losses.surrogate import clipped_surrogate

_POWER = 0.25
_TINY = 1e-10


class AWM:
    """Advantage-weighted matching, arXiv 2509.25050, with its authors' default weighting.

    For x_s of a sample x0 with fresh noise eps, and with c = `advantage_clip`:

        l     = mean((v - (eps - x0))^2)
        log p = -s / 0.25 * ((l + 1e-10)^0.25 - 1e-10^0.25)
        ratio = exp(log p - log p_old), with the same eps and s
        loss  = max(-A/c * ratio, -A/c * clip(ratio, 1 - e, 1 + e))
                + kl * mean((v - v_ref)^2) + old_kl * mean((v - v_old)^2)
    """

    Options = LOSSES["awm"].options
    samplers = LOSSES["awm"].samplers
    metrics = ("ratio_deviation", "clipped", "velocity_change", "kl")
    uses_old_policy = True

    def __init__(self, setup: LossSetup) -> None:
        training = setup.training
        self._clip_range: float = setup.options.clip_range
        self._clip = training.largest_advantage
        self._kl = training.kl
        self._old_kl: float = setup.options.old_kl
        self._noised = Noised(setup)

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """A row per sample and flow time that is trained on."""
        return self._noised.terms(batch, samples, keys)

    def evaluate(self, terms: Terms, velocities: Velocities) -> tuple[Tensor, dict[str, Tensor]]:
        """See the class."""
        velocity, old, reference = velocities
        change = _log_prob(terms, velocity) - _log_prob(terms, old)
        advantages = (terms.advantages / self._clip).clamp(-1, 1)
        ratio = torch.exp(change).float()
        loss, metrics = clipped_surrogate(ratio, advantages, self._clip_range)
        moved = row_mean((velocity - old) ** 2)
        loss = loss + self._old_kl * moved
        kl = torch.zeros_like(loss)
        if reference is not None:
            kl = row_mean((velocity - reference) ** 2)
            loss = loss + self._kl * kl
        return loss, metrics | {"velocity_change": moved.detach(), "kl": kl.detach()}


def _log_prob(terms: Terms, velocity: Tensor) -> Tensor:
    """[M] float64: the power is steep where the error is small."""
    error = row_mean((velocity.double() - terms.targets) ** 2)
    matched: Tensor = (error + _TINY) ** _POWER - _TINY**_POWER
    return -terms.sigmas / _POWER * matched
