"""Two transformers that denoise one after the other, as one: the first where there is much noise,
the second below a flow time.

A forward pass may have samples on both sides of it, as those of training do; each is computed by
its own transformer only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

TIMES = 1000
"""A transformer is told flow times in thousandths."""
_ROUNDED = 1e-4
"""Of a time in thousandths: what is lost where a float32 was one of whole flow time."""


class Experts(nn.Module):
    """The names of its weights begin with those of the parts of a checkpoint.

    Args:
        boundary: the least flow time, from 0 to 1, of the first transformer.
    """

    def __init__(self, transformer: Any, transformer_2: Any, *, boundary: float) -> None:
        super().__init__()
        self.transformer = transformer
        self.transformer_2 = transformer_2
        self._boundary = boundary * TIMES - _ROUNDED
        self.both = False
        """Whether every pass runs both, also where one has no sample: whose weights are shared out
        over ranks must run what the others run."""

    @property
    def config(self) -> Any:
        """That of the first; what is asked of it is the same in both."""
        return self.transformer.config

    @property
    def dtype(self) -> torch.dtype:
        """What both compute in."""
        dtype: torch.dtype = self.transformer.dtype
        return dtype

    def enable_gradient_checkpointing(self, function: Any) -> None:
        """As transformers of diffusers have it."""
        for expert in experts_of(self):
            expert.enable_gradient_checkpointing(function)

    def disable_gradient_checkpointing(self) -> None:
        """As transformers of diffusers have it."""
        for expert in experts_of(self):
            expert.disable_gradient_checkpointing()

    def is_first(self, timestep: Tensor) -> Tensor:
        """Which samples [B] the first computes, by their times [B]."""
        return timestep >= self._boundary

    def forward(
        self, *, timestep: Tensor, return_dict: bool = False, **inputs: Tensor
    ) -> tuple[Tensor]:
        """Every input has a row [B, ...] for each sample; so has the one output."""
        is_first = self.is_first(timestep)
        rows = [which.nonzero().flatten() for which in (is_first, ~is_first)]
        given, outputs = {"timestep": timestep, **inputs}, []
        for expert, own in zip(experts_of(self), rows, strict=True):
            if len(own) or self.both:
                taken = own if len(own) else own.new_zeros(1)
                shares = {name: tensor[taken] for name, tensor in given.items()}
                outputs.append(expert(**shares, return_dict=return_dict)[0][: len(own)])
        return (torch.cat(outputs)[torch.cat(rows).argsort()],)


def experts_of(transformer: nn.Module) -> tuple[Any, ...]:
    """The transformers of diffusers in the model's: both of two, or the one that it is."""
    if isinstance(transformer, Experts):
        return (transformer.transformer, transformer.transformer_2)
    return (transformer,)
