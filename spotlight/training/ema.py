"""The exponential moving average of the weights, which validation uses."""

from __future__ import annotations

import torch
from torch import Tensor


class Ema:
    """average <- decay * average + (1 - decay) * weights, once per optimizer step."""

    def __init__(self, weights: Tensor, decay: float) -> None:
        """Starts at `weights` (any shape, float32), of which it keeps a copy; `decay` in [0, 1)."""
        self.average = weights.clone()
        self._decay = decay

    @torch.no_grad()
    def update(self, weights: Tensor) -> None:
        """Move the average towards `weights`."""
        self.average.lerp_(weights, 1 - self._decay)
