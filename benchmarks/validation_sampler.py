"""The sampler of every validation, however a job denoises its samples: scores of jobs with other
steps or another solver would not be of the same images.

It takes many images at a time, since it has no cluster to share them out to: half the time of the
test-bed's micro-batches of two, for the same scores.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from spotlight.actors.coordinator.tenant.request_plans import evaluation_settings
from spotlight.assets import read_prompts
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.planners import derived_seed
from spotlight.types import SamplingSettings

if TYPE_CHECKING:
    from torch import Tensor

    from spotlight_simulation.one_process import OneProcess

STEPS = 8
MICRO_BATCH = 32


def measured_with(settings: SamplingSettings) -> SamplingSettings:
    """The same in Euler steps, as many for all."""
    return msgspec.structs.replace(settings, solver="euler", steps=STEPS, micro_batch=MICRO_BATCH)


def held_out_score(engine: OneProcess, job: JobSpec, weights: dict[str, Tensor]) -> float:
    """The mean score of the job's validation prompts, `validation.seeds` images of each. Raises
    what `OneProcess.scored` does."""
    prompts = read_prompts(job.prompts.validation)[: job.validation.prompts]
    pairs = [
        (prompt, derived_seed("validation", group, number))
        for number in range(job.validation.seeds)
        for group, prompt in enumerate(prompts)
    ]
    scored = engine.scored(weights, pairs, measured_with(evaluation_settings(job)))
    return fmean(score for part in scored for score in part.scores)
