"""Variants of DiffusionNFT that `benchmarks.ablations` compares, as losses of a job's own.

They share something among the samples of a prompt group that are in the same update, so unlike the
losses in the box they depend on how samples are dealt out over ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spotlight.training.batches import TrainingBatch
from spotlight.training.losses import LossSetup, Noised, Terms
from spotlight.training.losses.diffusion_nft import DiffusionNFT


def _keys_of_groups(batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> list[int]:
    """For every sample the key of the first one of its group."""
    first: dict[str, int] = {}
    prompts = [batch.prompts[sample] for sample in samples]
    return [first.setdefault(prompt, key) for prompt, key in zip(prompts, keys, strict=True)]


class SharedNoise(DiffusionNFT):
    """DiffusionNFT with the same noise at the same flow times for all samples of a group."""

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """See `DiffusionNFT`."""
        return super().terms(batch, samples, _keys_of_groups(batch, samples, keys))


class StratifiedTimes(DiffusionNFT):
    """DiffusionNFT with the flow times of a group's samples dealt out without replacement."""

    def __init__(self, setup: LossSetup) -> None:
        super().__init__(setup)
        self._stratified = _Stratified(setup)

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """See `DiffusionNFT`."""
        self._stratified.groups = _keys_of_groups(batch, samples, keys)
        return self._stratified.terms(batch, samples, keys)


class _Stratified(Noised):
    groups: Sequence[int]
    """The keys of the samples' groups, which are set before `terms`."""

    def _draw_times(self, keys: Sequence[int]) -> Tensor:
        steps, dealt = len(self._sigmas), Counter[int]()
        drawn = np.empty((len(keys), self._times), dtype=np.int64)
        for row, group in zip(drawn, self.groups, strict=True):
            order = np.random.Generator(np.random.Philox(key=group)).permutation(steps)
            row[:] = order[(dealt[group] + np.arange(self._times)) % steps]
            dealt[group] += self._times
        return torch.from_numpy(drawn)
