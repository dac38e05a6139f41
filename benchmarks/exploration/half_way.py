"""Does the clean image that the model predicts on the way tell what the sample will be worth?

On samples of 20 Euler steps (`ocr-20-steps`), with the weights before training. After some steps
the model has predicted a velocity v at flow time s for latents x, and with it clean latents
x - s v. The reward of their image is compared with that of the finished sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.exploration.rival_jobs import virtual_job
from benchmarks.exploration.rivals import LONG, OURS
from spotlight.actors.coordinator.tenant.request_plans import rollout_settings
from spotlight.assets import read_prompt_lines
from spotlight.jobs import JobSpec
from spotlight.permissions import Permissions
from spotlight.policies.exploration.ranking import spearman
from spotlight.types import Prompt

_AFTER = (5, 10, 15)
"""Steps of 20 after which a clean image is predicted."""
_PROMPTS, _SEEDS = 24, 16
_QUICK_PROMPTS, _QUICK_SEEDS = 2, 4
_FIRST_SEED = 1000


def half_way(*, quick: bool) -> dict[str, Any]:
    """`clean_image_agreement`, by the number of steps taken: the rank correlation, over the seeds
    of a prompt, of the predicted image's reward with that of the finished sample; the median of
    prompts."""
    job = virtual_job(LONG, OURS, 11)
    prompts = read_prompt_lines(job.prompts.train).items[: _QUICK_PROMPTS if quick else _PROMPTS]
    seeds = range(_FIRST_SEED, _FIRST_SEED + (_QUICK_SEEDS if quick else _SEEDS))
    rewards = _rewards(job, prompts, seeds)
    agreements = {
        steps: [spearman(of_prompt[steps], of_prompt[job.sampler.steps]) for of_prompt in rewards]
        for steps in _AFTER
    }
    return {
        "clean_image_agreement": {
            steps: round(median(one for one in found if one is not None), 3)
            for steps, found in agreements.items()
        }
    }


def _rewards(
    job: JobSpec, prompts: Sequence[Prompt], seeds: Sequence[int]
) -> list[dict[int, list[float]]]:
    """Of each prompt, those of the seeds by the number of steps taken."""
    from spotlight.diffusion.checkpoints import load_model  # torch: not for --help
    from spotlight.diffusion.samplers import start
    from spotlight.rewards.base import build_scorer

    settings, batch = rollout_settings(job, 0), job.sampler.micro_batch
    model, scorer = load_model(job.model), build_scorer(job.rewards[0], Permissions.of(job))
    size = settings.height, settings.width
    sigmas = model.sigmas(settings.steps, *size, settings.shift)
    found = []
    for prompt in prompts:
        by_steps: dict[int, list[float]] = {steps: [] for steps in (*_AFTER, settings.steps)}
        for first in range(0, len(seeds), batch):
            part = seeds[first : first + batch]
            denoising = start(model, [prompt.text] * len(part), part, settings)
            while not denoising.done:
                at, before = denoising.steps_taken, denoising.latents
                denoising.step()
                if at + 1 in by_steps:
                    velocity = (denoising.latents - before) / (sigmas[at + 1] - sigmas[at])
                    images = model.decode(before - sigmas[at] * velocity, *size)
                    by_steps[at + 1] += scorer.score(images, [prompt] * len(part))
        found.append(by_steps)
    return found
