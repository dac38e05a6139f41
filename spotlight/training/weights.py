"""The trainable weights of a model as one flat float32 vector.

One vector makes reducing, clipping, stepping and averaging one operation each. It is a copy of its
own: whatever else is loaded into the model between two iterations, training goes on from here; and
a bfloat16 model still learns steps that are too small for bfloat16.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import CheckpointError, TrainingDiverged
from spotlight.transport.collectives import Group


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor, along its first dimension, that a rank holds."""

    shape: tuple[int, ...]
    """The shape of the whole tensor."""
    first: int
    held: tuple[int, ...]
    """Shape of these rows."""


class BackwardSum:
    """Has backward passes leave their sum in one flat float32 vector [P], in the order of the
    parameters: on their device or, `offloaded`, on the CPU.
    """

    def __init__(self, parameters: Sequence[Tensor], *, offloaded: bool = False) -> None:
        self._parameters = parameters
        self._offloaded = offloaded
        self._views: list[Tensor] = []

    def new_vector(self) -> Tensor:
        """One that is long enough; what it holds is undefined."""
        held = [_held(parameter) for parameter in self._parameters]
        place = "cpu" if self._offloaded else held[0].device
        numbers = sum(each.numel() for each in held)
        return torch.empty(numbers, dtype=torch.float32, device=place)

    def start(self, vector: Tensor) -> None:
        """Zero `vector` and let backward passes add to it."""
        vector.zero_()
        self._views = _cut_like(vector, [_held(parameter) for parameter in self._parameters])
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = _like(parameter, view) if self._adds_itself(parameter) else None

    def collect(self) -> None:
        """Call after every backward pass: adds what autograd could not add itself."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if not self._adds_itself(parameter) and parameter.grad is not None:
                view.add_(_held(parameter.grad).to(view.device))
                parameter.grad = None

    def drop(self) -> None:
        """Detach the parameters from the vector."""
        self._views = []
        for parameter in self._parameters:
            parameter.grad = None

    def _adds_itself(self, parameter: Tensor) -> bool:
        """Whether autograd adds to the parameter's part of the vector."""
        return parameter.dtype == torch.float32 and not self._offloaded


class FlatWeights:
    """`values` [P] and `gradient` [P], float32, on the model's device or, `offloaded`, on the CPU,
    in the order of `names`; the same on all ranks of a group. `backward` leaves gradients in a
    vector of this kind.
    """

    def __init__(
        self, model: DiffusionModel, group: Group | None = None, *, offloaded: bool = False
    ) -> None:
        """Starts from the model's weights, of rank 0 if there is a group; raises `CheckpointError`
        when nothing is trainable, and `TransportError`.
        """
        self._group = group
        self._offloaded = offloaded
        parameters = trainable(model)
        self._hold(parameters, [parameter.dtype for parameter in parameters.values()])
        if group is not None:
            group.broadcast(self.values)

    def _hold(self, parameters: Mapping[str, Tensor], dtypes: Sequence[torch.dtype]) -> None:
        """`dtypes` are those that the model computes in."""
        self.names = list(parameters)
        self._parameters = list(parameters.values())
        self._dtypes = dtypes
        self._held = [_held(parameter) for parameter in self._parameters]
        self._sizes = [held.numel() for held in self._held]
        self._device = self._held[0].device
        place = "cpu" if self._offloaded else self._device
        self.values = torch.empty(sum(self._sizes), dtype=torch.float32, device=place)
        torch._foreach_copy_(self._views(self.values), self._held)
        self.gradient = torch.zeros_like(self.values)
        self.backward = BackwardSum(self._parameters, offloaded=self._offloaded)

    @property
    def rows(self) -> dict[str, Rows]:
        """What of each parameter this rank holds: all of it."""
        shapes = (
            (name, tuple(held.shape)) for name, held in zip(self.names, self._held, strict=True)
        )
        return {name: Rows(shape, 0, shape) for name, shape in shapes}

    @torch.no_grad()
    def install(self, values: Tensor) -> None:
        """Put `values` [P] into the model, in place."""
        torch._foreach_copy_(self._held, self._views(values))

    def reduce_gradient(self) -> float:
        """Sum `gradient` over the ranks; returns its norm. Raises `TransportError`."""
        if self._group is not None:
            self._group.all_reduce(self.gradient)
        norm: float = torch.linalg.vector_norm(self.gradient).item()
        return norm

    def most_passes(self, passes: Sequence[int]) -> list[int]:
        """So many passes all ranks must run, where this one has these: just these."""
        return list(passes)

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """A copy of `values` [P] as named float32 tensors on the CPU, which share no memory: of
        each parameter the `rows` of this rank."""
        views = zip(self.names, self._views(values), strict=True)
        return {name: view.detach().to("cpu", copy=True) for name, view in views}

    def published(self, values: Tensor) -> dict[str, Tensor]:
        """A copy of `values` [P] as named tensors on the CPU, in the dtypes that the model computes
        in: what a bfloat16 model would round anyhow need not travel. Raises `TrainingDiverged` if
        any value is not finite."""
        return self._published(values, 0, 1)

    def published_part(self, values: Tensor) -> dict[str, Tensor]:
        """Of `published` what this rank publishes; the parts of all ranks, which are about as large
        as each other, are all of it."""
        group = self._group
        return self._published(values, *((0, 1) if group is None else (group.rank, group.world)))

    def join(self, state: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `split`; raises `CheckpointError` for other names or shapes."""
        for name, rows in self.rows.items():
            if name not in state or tuple(state[name].shape) != rows.held:
                found = tuple(state[name].shape) if name in state else "missing"
                raise CheckpointError(
                    f"weights: {name} is {found}, but this model has {rows.held};"
                    " the checkpoint is of another model"
                )
        joined = torch.cat([state[name].flatten().float() for name in self.names])
        return joined.to(self.values.device)

    def _published(self, values: Tensor, part: int, parts: int) -> dict[str, Tensor]:
        require_finite(int((~values.isfinite()).sum()))
        views = list(zip(self.names, self._dtypes, self._views(values), strict=True))
        return {
            name: view.detach().to("cpu", dtype, copy=True)
            for name, dtype, view in views[share(self._sizes, part, parts)]
        }

    def _views(self, values: Tensor) -> list[Tensor]:
        return _cut_like(values, self._held)


def trainable(model: DiffusionModel) -> dict[str, Tensor]:
    """The parameters to train, by name; raises `CheckpointError` when there are none."""
    parameters = dict(model.transformer.named_parameters())
    found: dict[str, Tensor] = {name: parameters[name] for name in model.trainable_state()}
    if not found:
        raise CheckpointError("model.tuning: this model has no trainable weights")
    return found


def require_finite(others: int) -> None:
    """Raise `TrainingDiverged` if there are so many values that are not finite."""
    if others:
        raise TrainingDiverged(
            "the weights are not finite, and nobody shall denoise with them; resume from the last"
            " checkpoint with a lower training.learning_rate"
        )


def share(sizes: Sequence[int], part: int, parts: int) -> slice:
    """Which of a row of tensors are in a part: those whose middle is in its share of all."""
    ends = list(accumulate(sizes))
    middles = [end - size / 2 for end, size in zip(ends, sizes, strict=True)]
    first, last = (bisect_left(middles, ends[-1] * edge / parts) for edge in (part, part + 1))
    return slice(first, last)


def _cut_like(vector: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views on a flat vector, of the shapes of these tensors."""
    parts = torch.split(vector, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _held(parameter: Tensor) -> Tensor:
    """What this rank has of it, in place."""
    detached = parameter.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def _like(parameter: Tensor, held: Tensor) -> Tensor:
    """`held` as the rows of a tensor that is sharded as the parameter is."""
    if not isinstance(parameter, DTensor):
        return held
    return DTensor.from_local(
        held,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
