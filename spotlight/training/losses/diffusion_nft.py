"""DiffusionNFT: contrast an implicit positive and negative policy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spotlight.jobs.losses import LOSSES
from spotlight.training.batches import TrainingBatch
from spotlight.training.losses.base import LossSetup, Terms, Velocities, row_mean
from spotlight.training.losses.rows import Noised

_SMALLEST_SCALE = 1e-5
"""Lower bound of the adaptive weight."""


class DiffusionNFT:
    """DiffusionNFT, arXiv 2509.16117.

    For x_s of a sample x0 with fresh noise eps, and with b = `strength`, c = `advantage_clip`:

        r  = clip(A / (2c) + 1/2, 0, 1)
        v+ = (1 - b) * v_old + b * v,   v- = (1 + b) * v_old - b * v
        L(u) = mean((x0_u - x0)^2) / w, x0_u = x_s - s * u, w = max(mean|x0_u - x0|, 1e-5) detached
        loss = c * (r * L(v+) / b + (1 - r) * L(v-) / b) + kl * mean((v - v_ref)^2)
    """

    Options = LOSSES["diffusion_nft"].options
    samplers = LOSSES["diffusion_nft"].samplers
    metrics = ("velocity_change", "kl")
    uses_old_policy = True

    def __init__(self, setup: LossSetup) -> None:
        training = setup.training
        self._strength: float = setup.options.strength
        self._clip = training.largest_advantage
        self._kl = training.kl
        self._noised = Noised(setup)

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """A row per sample and flow time that is trained on."""
        return self._noised.terms(batch, samples, keys)

    def evaluate(self, terms: Terms, velocities: Velocities) -> tuple[Tensor, dict[str, Tensor]]:
        """See the class; x0_u - x0 = s * (eps - x0 - u) saves the detour over x0."""
        velocity, old, reference = velocities
        strength = self._strength
        share = (terms.advantages / (2 * self._clip) + 0.5).clamp(0, 1)
        change = strength * (velocity - old)
        miss = terms.targets - old
        positive = _adaptive_error(miss - change, terms.sigmas)
        negative = _adaptive_error(miss + change, terms.sigmas)
        loss = self._clip / strength * (share * positive + (1 - share) * negative)
        kl = torch.zeros_like(loss)
        if reference is not None:
            kl = row_mean((velocity - reference) ** 2)
            loss = loss + self._kl * kl
        with torch.no_grad():
            moved = row_mean((change / strength) ** 2)
        return loss, {"velocity_change": moved, "kl": kl.detach()}


def _adaptive_error(miss: Tensor, sigmas: Tensor) -> Tensor:
    """L(u) [M] for `miss` = eps - x0 - u, [M, T, C]."""
    error = sigmas.view(-1, 1, 1) * miss
    scale = error.detach().abs().flatten(1).mean(dim=1, dtype=torch.float64)
    return row_mean(error**2) / scale.clamp(min=_SMALLEST_SCALE).float()
