"""Which samples, or weights, are NaN or infinite."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def rows_not_finite(*tensors: Tensor) -> tuple[int, ...]:
    """The rows in which one of these tensors [B, ...] has a value that is NaN or infinite."""
    finite = [tensor.isfinite().flatten(1).all(dim=1) for tensor in tensors]
    return tuple(torch.stack(finite).all(dim=0).logical_not().nonzero().flatten().tolist())


@torch.no_grad()
def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor by name that has a value which is NaN or infinite; None if none has."""
    for name, tensor in tensors.items():
        if not all(_is_finite(part) for part in _parts(tensor)):
            return name
    return None


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.itemsize == 1:
        return True
    # A sum reads the tensor once, and makes no other of its size.
    return bool(tensor.sum(dtype=torch.float32).isfinite() or tensor.isfinite().all())


def _parts(tensor: Tensor) -> list[Tensor]:
    """The tensors that a quantised one consists of: its numbers are finite if their scales are."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [getattr(tensor, name) for name in names]
