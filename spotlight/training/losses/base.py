"""The interface of update rules. A loss turns samples into terms - one forward pass row each - and
the velocities that the policies have there into one loss per row, whose mean an update makes
smaller. The trainer does the rest: dividing samples, micro-batches, ranks, forward passes and
optimizer steps.

Convention: x_s = (1 - s) * x0 + s * eps, and the model predicts v = eps - x0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.training.batches import TrainingBatch


@dataclass(frozen=True)
class LossSetup:
    """What a loss is made from."""

    training: TrainingSpec
    """The job's section `training`."""
    sampler: SamplerSpec
    """The job's section `sampler`."""
    sigmas: Tensor
    """[steps + 1] float32: the flow times of a rollout, from 1 down to 0."""
    options: Any
    """What the job's `training.options` say, as the `Options` of the loss."""
    reuse: bool = False
    """Whether samples may be one iteration older than the weights."""


@dataclass(frozen=True)
class Terms:
    """M rows of forward passes and what their outputs are compared with."""

    samples: Tensor
    """[M] int64: rows of the batch."""
    latents: Tensor
    """[M, T, C] float32: what the model sees."""
    sigmas: Tensor
    """[M] float32: the flow times of `latents`."""
    targets: Tensor
    """[M, T, C] float32: the velocity eps - x0 (`Noised`) or the next latents (`Replayed`)."""
    advantages: Tensor
    """[M] float32: the advantage of each row."""
    steps: Tensor
    """[M] int64: the step of the schedule that is replayed; 0 for `Noised`."""
    log_probs: Tensor
    """[M] float32: of the step under the weights that sampled it; 0 for `Noised`."""

    def __len__(self) -> int:
        return self.samples.shape[0]

    def select(self, index: Tensor, device: torch.device) -> Terms:
        """The rows at `index`, on `device`."""
        return Terms(*(getattr(self, field.name)[index].to(device) for field in fields(self)))


class Velocities(NamedTuple):
    """The velocities [M, T, C] float32 of the terms' rows under three policies."""

    current: Tensor
    """The velocities of the weights that are trained; they are differentiable."""
    old: Tensor
    """The velocities of the weights that roll out, as they were before the iteration's first
    update: those that sampled, or with reuse those after them; the velocities of `current`,
    detached, unless the loss uses the old policy."""
    reference: Tensor | None
    """The velocities of the weights that the job began with; None when `training.kl` is 0."""


class Loss(Protocol):
    """An update rule; its class is called with a `LossSetup`.

    With `training.slices` above 1 an update is computed in several parts, by whoever is there: each
    part is given the samples of its own rows alone, by a loss that may have been made for it. A
    loss that needs more, such as the other samples of a prompt or what it computed before, says
    `sums_over_slices = False`, and is refused with such a job.
    """

    @property
    def samplers(self) -> Collection[str]:
        """Kinds of sampler whose samples it can train on. Without `ode` its rows repeat the
        sampler's noisy steps, and so run at one fixed batch size.
        """
        ...

    @property
    def metrics(self) -> Collection[str]:
        """What `evaluate` reports beside the loss."""
        ...

    @property
    def uses_old_policy(self) -> bool:
        """Whether `evaluate` reads the velocities of the weights that roll out."""
        ...

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """The rows for these samples of the batch, as many for each; `keys`, one for each sample,
        decide its random choices.
        """
        ...

    def evaluate(self, terms: Terms, velocities: Velocities) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Losses [M], differentiable in `velocities.current`, and a value [M] of every metric.

        Rows must not influence each other: a micro-batch holds any of them.
        """
        ...


def row_mean(values: Tensor) -> Tensor:
    """[M]: the mean over all but the first dimension."""
    return values.flatten(1).mean(dim=1)
