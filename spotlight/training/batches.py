"""The samples that one iteration trains on, and how they are divided.

Every random choice has a key of its own and is never drawn from a running stream. So any number of
ranks, and a resumed job, see the same choices as a single rank without interruption.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
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
    seeds: list[int] | None = None
    """The seed of each sample, by which errors name it; nothing else needs them."""

    def __post_init__(self) -> None:
        count = len(self.prompts)
        if count == 0:
            raise ValueError("prompts: an iteration needs at least one sample")
        for name in ("latents", "advantages", "window_states", "log_probs", "seeds"):
            rows = getattr(self, name)
            if rows is not None and len(rows) != count:
                raise ValueError(f"{name}: {len(rows)} rows for {count} prompts")

    def __len__(self) -> int:
        return len(self.prompts)

    def select(self, samples: Sequence[int]) -> TrainingBatch:
        """A batch of these samples alone, in this order."""
        rows = list(samples)
        return TrainingBatch(
            prompts=[self.prompts[row] for row in rows],
            latents=self.latents[rows],
            advantages=self.advantages[rows],
            window_states=None if self.window_states is None else self.window_states[rows],
            log_probs=None if self.log_probs is None else self.log_probs[rows],
            window_start=self.window_start,
            seeds=None if self.seeds is None else [self.seeds[row] for row in rows],
        )

    def name_of(self, sample: int) -> str:
        """How an error says which sample it is about."""
        seed = "" if self.seeds is None else f", seed {self.seeds[sample]}"
        return f"prompt {self.prompts[sample]!r}{seed}"


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
