"""Which samples are NaN or infinite."""

from __future__ import annotations

import torch
from torch import Tensor


def rows_not_finite(*tensors: Tensor) -> tuple[int, ...]:
    """The rows in which one of these tensors [B, ...] has a value that is NaN or infinite."""
    finite = [tensor.isfinite().flatten(1).all(dim=1) for tensor in tensors]
    return tuple(torch.stack(finite).all(dim=0).logical_not().nonzero().flatten().tolist())
