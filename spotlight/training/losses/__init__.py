"""Update rules behind one interface: those of Spotlight, and those of users."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import JobError
from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.jobs.losses import (
    LOSSES,
    LossOptions,
    NoisedOptions,
    loss_target,
    misfit,
    name_problem,
    read_options,
)
from spotlight.training.losses.base import Loss, LossSetup, Terms, Velocities, row_mean
from spotlight.training.losses.own import OwnLoss, own_class, own_options
from spotlight.training.losses.rows import Noised, Replayed
from spotlight.training.losses.surrogate import clipped_surrogate

__all__ = [
    "Loss",
    "LossOptions",
    "LossSetup",
    "Noised",
    "NoisedOptions",
    "Replayed",
    "Terms",
    "Velocities",
    "build_loss",
    "clipped_surrogate",
    "row_mean",
]


def build_loss(
    model: DiffusionModel, training: TrainingSpec, sampler: SamplerSpec, *, reuse: bool = False
) -> tuple[Loss, msgspec.Struct]:
    """The update rule of a job, and its options; with `reuse` its samples may be one iteration old.

    Raises `JobError` when its sampler has no schedule, and when a loss of the user's own cannot be
    loaded, has no such options, or does not fit the sampler.
    """
    size = sampler.height, sampler.width
    sigmas = model.sigmas(sampler.steps, *size, sampler.shift, sampler.frames)
    name = training.loss
    target = loss_target(name)
    if target is None:
        raise JobError("training.loss", str(name_problem(name)))
    kind = _boxed(target) if name in LOSSES else own_class(name, target)
    options = _options(training, kind.Options if name in LOSSES else own_options(name, kind))
    setup = LossSetup(training, sampler, sigmas, options, reuse)
    loss: Loss = kind(setup) if name in LOSSES else OwnLoss(name, kind, setup)
    problem = misfit(name, loss.samplers, sampler, training)
    if problem is not None:
        raise JobError(*problem)
    return loss, options


def _boxed(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _options(training: TrainingSpec, kind: type[msgspec.Struct]) -> msgspec.Struct:
    try:
        return read_options(training.loss, training.options, kind)
    except JobError as error:
        raise JobError(f"training.{error.path}", error.problem) from error
