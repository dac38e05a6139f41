"""What tells early what a sample will be worth: the clean image that the model predicts on the way,
or a whole preview of fewer steps?

On samples of 20 Euler steps (`ocr-20-steps`), with the weights before training. After some steps
the model has predicted a velocity v at flow time s for latents x, and with it clean latents
x - s v. The reward of their image is compared with that of the finished sample, and so are those of
previews by either solver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from benchmarks.exploration.rival_jobs import virtual_job
from benchmarks.exploration.rivals import LONG, OURS
from spotlight.actors.coordinator.tenant.request_plans import rollout_settings
from spotlight.assets import read_prompt_lines
from spotlight.jobs import JobSpec
from spotlight.permissions import Permissions
from spotlight.policies.exploration.ranking import spearman
from spotlight.types import Prompt, SamplingSettings, Solver

if TYPE_CHECKING:
    from torch import Tensor

    from spotlight.diffusion.samplers import Denoising

_AFTER = (5, 10, 15)
"""Steps of 20 after which a clean image is predicted."""
_PREVIEWS = (4, 5, 10)
"""Steps of whole previews."""
_PROMPTS, _SEEDS = 24, 16
_QUICK_PROMPTS, _QUICK_SEEDS = 2, 4
_FIRST_SEED = 1000


def half_way(*, quick: bool) -> dict[str, Any]:
    """`clean_image_agreement`, by the number of steps taken, and `preview_agreement`, by solver and
    number of steps: the rank correlation, over the seeds of a prompt, of that image's reward with
    that of the finished sample; the median of prompts."""
    import torch  # not for --help

    torch.set_num_threads(1)  # of such small tensors several threads would only get in their way
    job = virtual_job(LONG, OURS, 11)
    prompts = read_prompt_lines(job.prompts.train).items[: _QUICK_PROMPTS if quick else _PROMPTS]
    seeds = range(_FIRST_SEED, _FIRST_SEED + (_QUICK_SEEDS if quick else _SEEDS))
    denoised = _Denoised(job, seeds)
    on_the_way = [denoised.on_the_way(prompt) for prompt in prompts]
    finished = [rewards[job.sampler.steps] for rewards in on_the_way]
    return {
        "clean_image_agreement": {
            steps: _agreement([rewards[steps] for rewards in on_the_way], finished)
            for steps in _AFTER
        },
        "preview_agreement": {
            solver: {
                steps: _agreement(
                    [denoised.whole(each, solver, steps) for each in prompts], finished
                )
                for steps in _PREVIEWS
            }
            for solver in get_args(Solver)
        },
    }


def _agreement(early: Sequence[list[float]], finished: Sequence[list[float]]) -> float:
    """The median over the prompts whose rewards have an order."""
    found = [spearman(*rewards) for rewards in zip(early, finished, strict=True)]
    return round(median(one for one in found if one is not None), 3)


class _Denoised:
    """Images of the same seeds for any prompt, and what they are worth."""

    def __init__(self, job: JobSpec, seeds: Sequence[int]) -> None:
        from spotlight.diffusion.checkpoints import load_model
        from spotlight.rewards.base import build_scorer

        self._settings = rollout_settings(job, 0)
        self._batch, self._seeds = job.sampler.micro_batch, seeds
        self._model = load_model(job.model)
        self._scorer = build_scorer(job.rewards[0], Permissions.of(job))

    def on_the_way(self, prompt: Prompt) -> dict[int, list[float]]:
        """The rewards of all seeds by the number of steps taken: of predicted clean images, and of
        samples at the end."""
        size = self._settings.height, self._settings.width
        sigmas = self._model.sigmas(self._settings.steps, *size, self._settings.shift)
        found: dict[int, list[float]] = {steps: [] for steps in (*_AFTER, self._settings.steps)}
        for denoising in self._batches(prompt, self._settings):
            while not denoising.done:
                at, before = denoising.steps_taken, denoising.latents
                denoising.step()
                if at + 1 in found:
                    velocity = (denoising.latents - before) / (sigmas[at + 1] - sigmas[at])
                    found[at + 1] += self._worth(prompt, before - sigmas[at] * velocity)
        return found

    def whole(self, prompt: Prompt, solver: Solver, steps: int) -> list[float]:
        """The rewards of all seeds, denoised so."""
        settings = msgspec.structs.replace(self._settings, solver=solver, steps=steps)
        rewards: list[float] = []
        for denoising in self._batches(prompt, settings):
            while not denoising.done:
                denoising.step()
            rewards += self._worth(prompt, denoising.latents)
        return rewards

    def _batches(self, prompt: Prompt, settings: SamplingSettings) -> Iterator[Denoising]:
        from spotlight.diffusion.samplers import start

        for first in range(0, len(self._seeds), self._batch):
            part = self._seeds[first : first + self._batch]
            yield start(self._model, [prompt.text] * len(part), part, settings)

    def _worth(self, prompt: Prompt, latents: Tensor) -> list[float]:
        images = self._model.decode(latents, self._settings.height, self._settings.width)
        return list(self._scorer.score(images, [prompt] * len(images)))
