"""A denoising that is under way, as another worker can go on from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_TENSORS = ("latents", "window_states", "log_probs", "foreseen")
"""The tensors of a `Progress`, in the order of its fields."""


@dataclass(frozen=True)
class Progress:
    """A denoising after `step` steps: all that another worker needs to go on.

    `window_states` holds the latents before the first and after every window step taken so far;
    `log_probs` one value per window step taken.
    """

    step: int
    latents: Tensor
    """[B, T, C] float32 on the CPU."""
    window_states: Tensor
    """[B, k + 1, T, C], or [B, 0, T, C] before the window."""
    log_probs: Tensor
    """[B, k]: one log-probability of each noisy step."""
    foreseen: Tensor
    """[B, 1, T, C]: the clean latents that the last step foresaw, if the solver looks back at them
    in the next one; else [B, 0, T, C]."""

    @classmethod
    def begin(cls, latents: Tensor) -> Progress:
        """Before the first step, at the initial noise `latents` [B, T, C]."""
        none = latents.new_zeros(len(latents), 0, *latents.shape[1:])
        return cls(0, latents, none, latents.new_zeros(len(latents), 0), none)

    def __len__(self) -> int:
        return self.latents.shape[0]

    def select(self, rows: Sequence[int]) -> Progress:
        """The progress of the samples at `rows`."""
        index = list(rows)
        return Progress(self.step, *(tensor[index] for tensor in self._tensors()))

    @staticmethod
    def join(parts: Sequence[Progress]) -> Progress:
        """Put samples that are at the same step into one batch; raises `ValueError` when their
        steps differ.
        """
        steps = {part.step for part in parts}
        if len(steps) != 1:
            raise ValueError(f"only samples at one step can be joined, not {sorted(steps)}")
        columns = zip(*(part._tensors() for part in parts), strict=True)
        return Progress(steps.pop(), *(torch.cat(tensors) for tensors in columns))

    def tensors(self) -> dict[str, Tensor]:
        """As named tensors, for a bundle."""
        named = zip(_TENSORS, self._tensors(), strict=True)
        return {"step": torch.tensor(self.step), **dict(named)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Progress:
        """The inverse of `tensors`; raises `ValueError` naming a missing tensor."""
        for name in ("step", *_TENSORS):
            if name not in tensors:
                raise ValueError(f"a commit without `{name}`")
        return cls(int(tensors["step"]), *(tensors[name] for name in _TENSORS))

    def _tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, name) for name in _TENSORS)
