"""The sampler of every validation, however a job denoises its samples: scores of jobs with other
steps or another solver would not be of the same images.

It takes many images at a time, since it has no cluster to share them out to: half the time of the
test-bed's micro-batches of two, for the same scores.
"""

from __future__ import annotations

import msgspec

from spotlight.types import SamplingSettings

STEPS = 8
MICRO_BATCH = 32


def measured_with(settings: SamplingSettings) -> SamplingSettings:
    """The same in Euler steps, as many for all."""
    return msgspec.structs.replace(settings, solver="euler", steps=STEPS, micro_batch=MICRO_BATCH)
