"""The clipped surrogate of PPO, which the policy-gradient losses share."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_range: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """max(-A * ratio, -A * clip(ratio, 1 - e, 1 + e)) [M] of PPO, arXiv 1707.06347, equation 7.

    With it come `ratio_deviation`, |ratio - 1|, and `clipped`, 1 where the clip stops the gradient.
    """
    bounded = ratio.clamp(1 - clip_range, 1 + clip_range)
    loss = torch.maximum(-advantages * ratio, -advantages * bounded)
    with torch.no_grad():
        clipped = (-advantages * bounded > -advantages * ratio).to(loss.dtype)
        return loss, {"ratio_deviation": (ratio - 1).abs(), "clipped": clipped}
