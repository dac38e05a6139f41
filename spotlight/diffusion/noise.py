"""Noise that depends on (seed, step) alone.

Drawn on the CPU in float32 for the full latent of one sample, so that the worker, the batch, the
device, sequence parallelism and resuming from a commit never change it. Every (seed, step) is the
key of a counter-based generator of its own (Philox, 128-bit key), so no generator state has to be
saved and no two keys share a stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_INITIAL = 0


def initial_noise(seeds: Sequence[int], shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise [B, *shape], float32 on the CPU: the latents at sigma 1, one row per
    seed.
    """
    return _draw(seeds, _INITIAL, shape)


def step_noise(seeds: Sequence[int], step: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise [B, *shape], float32 on the CPU, of denoising step `step` (from 0)."""
    return _draw(seeds, step + 1, shape)


def _draw(seeds: Sequence[int], stream: int, shape: tuple[int, ...]) -> Tensor:
    rows = np.empty((len(seeds), *shape), dtype=np.float32)
    for row, seed in zip(rows, seeds, strict=True):
        key = np.array([seed, stream], dtype=np.uint64)
        np.random.Generator(np.random.Philox(key=key)).standard_normal(dtype=np.float32, out=row)
    return torch.from_numpy(rows)
