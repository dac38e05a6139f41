"""One denoising step as a probability: the mean and standard deviation of the next latents, and the
log-probability.

The sampler and the trainer's replay call the same functions, so a replayed step with unchanged
weights has a probability ratio of exactly 1. Everything is float32; s is the step's sigma, s' < s
the next, dt = s' - s < 0, and `a` the noise level.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spotlight.types import SamplerKind

Scalar = float | Tensor


def euler(latents: Tensor, velocity: Tensor, sigma: Scalar, next_sigma: Scalar) -> Tensor:
    """The deterministic step x' = x + v * dt, [B, T, C]."""
    sigma, next_sigma = _column(sigma, latents), _column(next_sigma, latents)
    return latents + velocity * (next_sigma - sigma)


def dpmpp_2m(
    latents: Tensor, velocity: Tensor, foreseen: Tensor, sigmas: Tensor, step: int
) -> Tensor:
    """The deterministic step of DPM-Solver++(2M), arXiv 2211.01095, algorithm 2, [B, T, C].

    With lambda(s) = log((1 - s) / s), which h and h_before are the steps of:

        x' = s'/s * x + (1 - s'/s) * D, D = x0 + h / (2 * h_before) * (x0 - x0_before)

    `foreseen` [B, T, C] is x0_before, what `foresee` gave in the step before. It is no formula for
    the first two steps, since lambda is infinite at s = 1, and for the last one.
    """
    before, sigma, following = (float(sigmas[step + offset]) for offset in (-1, 0, 1))
    if before >= 1:  # an extreme shift
        return euler(latents, velocity, sigma, following)
    logs = [math.log((1 - each) / each) for each in (before, sigma, following)]
    weight = (logs[2] - logs[1]) / (2 * (logs[1] - logs[0]))
    clean = foresee(latents, velocity, sigma)
    ratio = following / sigma
    return ratio * latents + (1 - ratio) * (clean + weight * (clean - foreseen))


def foresee(latents: Tensor, velocity: Tensor, sigma: Scalar) -> Tensor:
    """The clean latents x0 = x - s * v [B, T, C] that a velocity promises."""
    return latents - _column(sigma, latents) * velocity


def transition(
    kind: SamplerKind,
    noise_level: float,
    latents: Tensor,
    velocity: Tensor,
    sigmas: Tensor,
    step: int | Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean [B, T, C] and standard deviation ([1, 1, 1] or [B, 1, 1]) of the next latents.

    `sigmas` [steps + 1] is the schedule, and `step` the step from s = sigmas[step] to s' =
    sigmas[step + 1]: one for all samples, or a tensor [B] with one for each.

    - `ode`: Euler; the standard deviation is 0.
    - `flow_sde` (Flow-GRPO, arXiv 2505.05470): std_s = a * sqrt(s / (1 - s)),
      mean = x * (1 + std_s^2 * dt / (2s)) + v * (1 + std_s^2 * (1 - s) / (2s)) * dt, std = std_s *
      sqrt(-dt). In the first step, where s = 1, the denominator uses the schedule's second sigma.
    - `dance_sde` (DanceGRPO, arXiv 2505.07818): as `flow_sde` with std_s = a.
    - `cps` (coefficients-preserving sampling, arXiv 2509.05952): x0 = x - s * v, eps = x + (1 - s)
      * v,
      std = s' * sin(a * pi / 2), mean = (1 - s') * x0 + sqrt(s'^2 - std^2) * eps.
    """
    sigmas, steps = sigmas.to(latents.device), torch.as_tensor(step, device=latents.device)
    sigma, next_sigma = _column(sigmas[steps], latents), _column(sigmas[steps + 1], latents)
    dt = next_sigma - sigma
    if kind == "ode":
        return latents + velocity * dt, torch.zeros_like(dt)
    if kind in ("flow_sde", "dance_sde"):
        diffusion = torch.full_like(sigma, noise_level)
        if kind == "flow_sde":
            # The first step is known by its index: float32 makes the first sigma of one shifted
            # schedule in ten 1 +- 1e-7.
            denominator = 1 - _column(sigmas[steps.clamp(min=1)], latents)
            diffusion = noise_level * torch.sqrt(sigma / denominator)
        drift = diffusion**2 / (2 * sigma)
        mean = latents * (1 + drift * dt) + velocity * (1 + drift * (1 - sigma)) * dt
        return mean, diffusion * torch.sqrt(-dt)
    clean = foresee(latents, velocity, sigma)
    noise = latents + (1 - sigma) * velocity
    std = next_sigma * math.sin(noise_level * math.pi / 2)
    return (1 - next_sigma) * clean + torch.sqrt(next_sigma**2 - std**2) * noise, std


def log_prob(kind: SamplerKind, sample: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-probability [B] of the next latents `sample` [B, T, C], as a mean over the latent
    dimensions.

    A mean, not a sum, as in Flow-GRPO: clip ranges are tuned for it. `cps` leaves out 1 / (2 std^2)
    and the constants, as its authors do. A step without noise has no density; its log-probability
    is 0.
    """
    squared = (sample - mean) ** 2
    if kind == "cps":
        return -squared.flatten(1).mean(dim=1)
    noisy = std > 0
    std = torch.where(noisy, std, torch.ones_like(std))
    density = -squared / (2 * std**2) - torch.log(std) - math.log(math.sqrt(2 * math.pi))
    return torch.where(noisy, density, torch.zeros_like(density)).flatten(1).mean(dim=1)


def _column(value: Scalar, latents: Tensor) -> Tensor:
    """`value` as float32 [1, 1, 1] or [B, 1, 1]: one value for all samples, or one for each."""
    column = torch.as_tensor(value, dtype=torch.float32, device=latents.device)
    return column.reshape(-1, *(1,) * (latents.dim() - 1))
