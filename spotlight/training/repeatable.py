"""Kernels that give the same bits every time, for what several may compute.

On CUDA some kernels add in whatever order their threads finish: the backward passes of torch's
fused attention (flash and memory-efficient), `index_add`, and cuBLAS with several workspaces. With
`torch.use_deterministic_algorithms` the first ones add in a fixed order, cuDNN's attention is not
chosen, and an operation that cannot do so raises `RuntimeError`, which names it; cuBLAS wants the
environment variable CUBLAS_WORKSPACE_CONFIG, too, which nodes set for their workers. Attention of
packages beside torch knows nothing of this.

Sources: the page of `torch.use_deterministic_algorithms` in torch's documentation, and "Results
reproducibility" in that of cuBLAS.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def repeatable_kernels(device: torch.device) -> Iterator[None]:
    """Within, what is computed on the device has the same bits every time. Kernels of a CPU have
    anyway. Torch knows this for a whole process: others who compute in it meanwhile are slower."""
    if device.type != "cuda":
        yield
        return
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory that it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
