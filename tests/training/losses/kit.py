"""What the tests of losses share."""

from __future__ import annotations

import torch
from torch import Tensor

from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.training.losses import LossSetup
from tests.training.fakes import CHANNELS, SAMPLER, TOKENS

SIGMAS = torch.linspace(1, 0, 7)
SHAPE = (TOKENS, CHANNELS)
KEYS = list(range(100, 108))
"""Of the random choices of 8 samples."""


def setup(training: TrainingSpec, sampler: SamplerSpec = SAMPLER) -> LossSetup:
    """What a loss of these sections is made from."""
    return LossSetup(training, sampler, SIGMAS)


def velocities(count: int, seed: int) -> Tensor:
    """Random ones."""
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))
