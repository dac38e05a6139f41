"""Which samples, or weights, are NaN or infinite."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def rows_not_finite(*tensors: Tensor) -> tuple[int, ...]:
    """The rows in which one of these tensors [B, ...] has a value that is NaN or infinite."""
    finite = [tensor.isfinite().flatten(1).all(dim=1) for tensor in tensors]
    return tuple(torch.stack(finite).all(dim=0).logical_not().nonzero().flatten().tolist())


@torch.no_grad()
def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor by name that has a value which is NaN or infinite; None if none has."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.sum(dtype=torch.float32).isfinite():
            continue  # a sum reads the tensor once, and makes no other of its size
        if not tensor.isfinite().all():
            return name
    return None
