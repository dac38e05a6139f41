"""What the tests of losses share."""

from __future__ import annotations

import torch
from torch import Tensor

from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.jobs.losses import LOSSES, read_options
from spotlight.training.losses import LossSetup
from tests.training.fakes import CHANNELS, SAMPLER, TOKENS

SIGMAS = torch.linspace(1, 0, 7)
SHAPE = (TOKENS, CHANNELS)
KEYS = list(range(100, 108))
"""Of the random choices of 8 samples."""


def setup(training: TrainingSpec, sampler: SamplerSpec = SAMPLER) -> LossSetup:
    """What a loss of these sections is made from."""
    options = read_options(training.loss, training.options, LOSSES[training.loss].options)
    return LossSetup(training, sampler, SIGMAS, options)


def velocities(count: int, seed: int) -> Tensor:
    """Random ones."""
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))
