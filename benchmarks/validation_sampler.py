"""The sampler of every validation, however a job denoises its samples: scores of jobs with other
steps or another solver would not be of the same images."""

from __future__ import annotations

import msgspec

from spotlight.types import SamplingSettings

STEPS = 8


def measured_with(settings: SamplingSettings) -> SamplingSettings:
    """The same in Euler steps, as many for all."""
    return msgspec.structs.replace(settings, solver="euler", steps=STEPS)
