"""A batch to train on, of samples that a model draws itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spotlight.actors.coordinator.tenant.request_plans import sampling_settings
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import sample
from spotlight.jobs import SamplerSpec
from spotlight.training.batches import TrainingBatch


def drawn_batch(
    model: DiffusionModel, sampler: SamplerSpec, prompts: Sequence[str]
) -> TrainingBatch:
    """A sample of each prompt, of seeds from 0 on, with advantages from -2 to 2; of a sampler that
    adds noise with its window, as early as it may be.
    """
    noisy_from = sampler.window.earliest if sampler.kind != "ode" else None
    seeds = list(range(len(prompts)))
    with torch.no_grad():
        drawn = sample(model, prompts, seeds, sampling_settings(sampler, sampler.steps, noisy_from))
    is_noisy = noisy_from is not None
    return TrainingBatch(
        prompts=[*prompts],
        latents=drawn.latents,
        advantages=torch.linspace(-2, 2, len(prompts)),
        window_states=drawn.window_states if is_noisy else None,
        log_probs=drawn.log_probs if is_noisy else None,
        window_start=drawn.window_start,
        seeds=seeds,
    )
