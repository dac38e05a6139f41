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

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch


@contextmanager
def repeatable_kernels(device: torch.device) -> Iterator[None]:
    """Within, what is computed on the device has the same bits every time. Kernels of a CPU have
    anyway. Torch knows this for a whole process: others who compute in it meanwhile are slower, and
    what has no such kernel raises there, too."""
    if device.type != "cuda":
        yield
        return
    _process.enter()
    try:
        yield
    finally:
        _process.leave()


class _Told(NamedTuple):
    """What torch was told."""

    enabled: bool
    warns: bool
    fills: bool


class _Process:
    """What torch is told for a process while any of its threads is within: one that is stuck is
    left behind for another one, and may leave while that one computes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        """How many are."""
        self._before = _told()

    def enter(self) -> None:
        """Somebody's kernels have to repeat themselves."""
        with self._lock:
            if not self._within:
                self._before = _told()
                # Nothing here reads memory that it has not written.
                _tell(_Told(enabled=True, warns=False, fills=False))
            self._within += 1

    def leave(self) -> None:
        """The same one is done; with the last one, torch is told what it was before."""
        with self._lock:
            self._within -= 1
            if not self._within:
                _tell(self._before)


def _told() -> _Told:
    return _Told(
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )


def _tell(wanted: _Told) -> None:
    torch.use_deterministic_algorithms(wanted.enabled, warn_only=wanted.warns)
    torch.utils.deterministic.fill_uninitialized_memory = wanted.fills  # type: ignore[attr-defined]


_process = _Process()
