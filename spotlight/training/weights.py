"""The trainable weights of a model as one flat float32 vector.

One vector makes reducing, clipping, stepping and averaging one operation each. It is a copy of its
own: whatever else is loaded into the model between two iterations, training goes on from here; and
a bfloat16 model still learns steps that are too small for bfloat16.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import CheckpointError, TrainingDiverged


class FlatWeights:
    """`values` [P] and `gradient` [P], float32, on the model's device, in the order of `names`."""

    def __init__(self, model: DiffusionModel) -> None:
        """Starts from the model's weights; raises `CheckpointError` when nothing is trainable."""
        state = model.trainable_state()
        if not state:
            raise CheckpointError("model.tuning: this model has no trainable weights")
        parameters = dict(model.transformer.named_parameters())
        self.names = list(state)
        self._parameters: list[Tensor] = [parameters[name] for name in self.names]
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self.values = torch.cat([tensor.flatten().float() for tensor in state.values()])
        self.gradient = torch.zeros_like(self.values)

    @torch.no_grad()
    def install(self, values: Tensor) -> None:
        """Put `values` [P] into the model, in place."""
        torch._foreach_copy_(self._parameters, self._views(values))

    def start_gradients(self) -> None:
        """Zero `gradient` and let backward passes add to it."""
        self.gradient.zero_()
        for parameter, view in zip(self._parameters, self._views(self.gradient), strict=True):
            parameter.grad = view if parameter.dtype == torch.float32 else None

    def collect_gradients(self) -> None:
        """Call after every backward pass: adds what autograd could not add in float32 itself."""
        for parameter, view in zip(self._parameters, self._views(self.gradient), strict=True):
            if parameter.dtype != torch.float32 and parameter.grad is not None:
                view.add_(parameter.grad)
                parameter.grad = None

    def drop_gradients(self) -> None:
        """Detach the model's parameters from `gradient`."""
        for parameter in self._parameters:
            parameter.grad = None

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """A copy of `values` [P] as named float32 tensors on the CPU, which share no memory."""
        views = zip(self.names, self._views(values), strict=True)
        return {name: view.detach().to("cpu", copy=True) for name, view in views}

    def published(self, values: Tensor, *, part: int = 0, parts: int = 1) -> dict[str, Tensor]:
        """A copy of `values` [P] as named tensors on the CPU, in the dtypes that the model computes
        in: what a bfloat16 model would round anyhow need not travel. Of several `parts`, which are
        about as large as each other, one. Raises `TrainingDiverged` if any value is not finite."""
        if not bool(values.isfinite().all()):
            raise TrainingDiverged(
                "the weights are not finite, and nobody shall denoise with them; resume from the"
                " last checkpoint with a lower training.learning_rate"
            )
        views = list(zip(self.names, self._parameters, self._views(values), strict=True))
        return {
            name: view.detach().to("cpu", parameter.dtype, copy=True)
            for name, parameter, view in views[_share(self._sizes, part, parts)]
        }

    def join(self, state: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `split`; raises `CheckpointError` for other names or shapes."""
        for name, parameter in zip(self.names, self._parameters, strict=True):
            if name not in state or state[name].shape != parameter.shape:
                found = tuple(state[name].shape) if name in state else "missing"
                raise CheckpointError(
                    f"weights: {name} is {found}, but this model has {tuple(parameter.shape)};"
                    " the checkpoint is of another model"
                )
        joined = torch.cat([state[name].flatten().float() for name in self.names])
        return joined.to(self.values.device)

    def _views(self, values: Tensor) -> list[Tensor]:
        parts = torch.split(values, self._sizes)
        return [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)]


def _share(sizes: Sequence[int], part: int, parts: int) -> slice:
    """Which of a row of tensors are in a part: those whose middle is in its share of all."""
    ends = list(accumulate(sizes))
    middles = [end - size / 2 for end, size in zip(ends, sizes, strict=True)]
    first, last = (bisect_left(middles, ends[-1] * edge / parts) for edge in (part, part + 1))
    return slice(first, last)
