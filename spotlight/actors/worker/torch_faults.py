"""What torch's errors say of the accelerator.

A kernel that fails leaves the CUDA context of its process useless: every later call raises the same
error, and only another process can use the device again. Running out of memory is no such failure.
Libraries below torch, such as cuBLAS, mostly raise a plain `RuntimeError`, which says nothing:
that the worker behind it is sick shows when other workers can do what it cannot.
"""

from __future__ import annotations

import torch

from spotlight.actors.worker.engine import Fault

_ALLOCATION_FAILED = 2
"""`cudaErrorMemoryAllocation`, for what was not allocated through torch: the context is intact."""


def fault_of(error: BaseException) -> Fault:
    """See `engine.Engine.fault_of`."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError | MemoryError):
            return "memory"
        if isinstance(cause, torch.AcceleratorError):
            code = getattr(cause, "error_code", None)  # older versions of torch do not say
            return "memory" if code == _ALLOCATION_FAILED else "accelerator"
        cause = cause.__cause__ or cause.__context__
    return ""
