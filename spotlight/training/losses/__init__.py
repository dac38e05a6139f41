"""Update rules behind one interface: those of Spotlight, and those of users."""

from __future__ import annotations

import importlib

from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import JobError
from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.jobs.losses import LOSSES, loss_target, misfit, name_problem
from spotlight.training.losses.base import Loss, LossSetup, Terms, Velocities, row_mean
from spotlight.training.losses.own import OwnLoss
from spotlight.training.losses.rows import Noised, Replayed
from spotlight.training.losses.surrogate import clipped_surrogate

__all__ = [
    "Loss",
    "LossSetup",
    "Noised",
    "Replayed",
    "Terms",
    "Velocities",
    "build_loss",
    "clipped_surrogate",
    "row_mean",
]


def build_loss(
    model: DiffusionModel, training: TrainingSpec, sampler: SamplerSpec, *, reuse: bool = False
) -> Loss:
    """The update rule of a job; with `reuse` its samples may be one iteration old.

    Raises `JobError` when its sampler has no schedule, and when a loss of the user's own cannot be
    loaded or does not fit the sampler.
    """
    size = sampler.height, sampler.width
    sigmas = model.sigmas(sampler.steps, *size, sampler.shift, sampler.frames)
    setup = LossSetup(training, sampler, sigmas, reuse)
    name = training.loss
    target = loss_target(name)
    if target is None:
        raise JobError("training.loss", str(name_problem(name)))
    loss = _boxed(target, setup) if name in LOSSES else OwnLoss(name, target, setup)
    problem = misfit(name, loss.samplers, sampler, training)
    if problem is not None:
        raise JobError(*problem)
    return loss


def _boxed(target: str, setup: LossSetup) -> Loss:
    module, _, name = target.partition(":")
    loss: Loss = getattr(importlib.import_module(module), name)(setup)
    return loss
