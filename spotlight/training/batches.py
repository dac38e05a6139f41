"""The samples that one iteration trains on, and how they are divided.

Every random choice has a key of its own and is never drawn from a running stream. So any number of
ranks, and a resumed job, see the same choices as a single rank without interruption.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass
class TrainingBatch:
    """All samples of an iteration, in canonical order, on the CPU.

    Raises `ValueError` naming the field whose number of rows does not fit.
    """

    prompts: list[str]
    latents: Tensor
    """[N, T, C] float32, clean."""
    advantages: Tensor
    """[N] float32: the advantage of each sample."""
    window_states: Tensor | None = None
    """[N, w + 1, T, C] float32: the latents before the first and after every window step."""
    log_probs: Tensor | None = None
    """[N, w] float32, as the sampler computed them."""
    window_start: int = 0
    """The first window step."""

    def __post_init__(self) -> None:
        count = len(self.prompts)
        if count == 0:
            raise ValueError("prompts: an iteration needs at least one sample")
        for name in ("latents", "advantages", "window_states", "log_probs"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape[0] != count:
                raise ValueError(f"{name}: {tensor.shape[0]} rows for {count} prompts")

    def __len__(self) -> int:
        return len(self.prompts)


def key(*parts: int) -> int:
    """An unsigned 64-bit key for a random choice, from the integers that say which choice it is."""
    digest = hashlib.blake2b(struct.pack(f"<{len(parts)}q", *parts), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def deal(count: int, hands: int, choice: int) -> list[list[int]]:
    """Shuffle `count` samples with the key `choice` and deal them out like cards.

    The hands differ by one sample at most; hands that would stay empty are left out.
    """
    order = np.random.Generator(np.random.Philox(key=choice)).permutation(count).tolist()
    return [order[first::hands] for first in range(min(hands, count))]
