"""The clipped surrogate of PPO and the correction for older samples, which the policy-gradient
losses share.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MOST_WEIGHT = 2.0


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


def truncated_weight(log_ratio: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """min(exp(log_ratio), 2) [M]: how much samples of an older policy count for a newer one.

    With it come `reuse_weight`, the same, and `reuse_truncated`, 1 where the bound is at work.
    """
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(max=_MOST_WEIGHT)
    truncated = (ratio > _MOST_WEIGHT).to(ratio.dtype)
    return weight, {"reuse_weight": weight, "reuse_truncated": truncated}
