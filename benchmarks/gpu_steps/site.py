"""What the steps of the benchmark `gpu` share: where they run, and how they time and watch it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

GB = 1e9


@dataclass(frozen=True)
class Site:
    """Where a step runs."""

    device: torch.device
    quick: bool
    """Tiny sizes, so that a CPU can do it."""

    @property
    def is_gpu(self) -> bool:
        """Whether it has CUDA."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """What models compute in there."""
        return torch.bfloat16 if self.is_gpu else torch.float32

    def synchronize(self) -> None:
        """Wait until all that was queued is done."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], repeats: int = 5) -> float:
        """The median of so many repetitions, after one that warms up."""
        work()
        taken = []
        for _ in range(1 if self.quick else repeats):
            self.synchronize()
            began = perf_counter()
            work()
            self.synchronize()
            taken.append(perf_counter() - began)
        return statistics.median(taken)

    def peak_gb(self, work: Callable[[], object]) -> float:
        """Most memory that torch held on the GPU meanwhile; 0 on a CPU, which does not count it."""
        if not self.is_gpu:
            work()
            return 0.0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.device) / GB
