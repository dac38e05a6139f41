"""Forward passes of a batch's terms, in micro-batches of one size.

A short micro-batch is padded with copies of its last row, whose outputs are dropped: kernels choose
by the batch size, and rows never influence each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlight.diffusion.model import DiffusionModel
from spotlight.jobs import SamplerSpec
from spotlight.training.losses.base import Terms


@dataclass(frozen=True)
class MicroBatch:
    """Rows on the model's device, and the batch size that they are run at."""

    terms: Terms
    size: int


def micro_batch_size(rows: int, most: int, *, fixed: bool) -> int:
    """How many rows each of the fewest possible micro-batches has, of `most` rows or fewer:
    exactly `most` if that is `fixed`, else as even as can be."""
    return most if fixed or not rows else -(-rows // -(-rows // most))


class Forwards:
    """Forward passes for the rows of a batch."""

    def __init__(self, model: DiffusionModel, sampler: SamplerSpec, prompts: Sequence[str]) -> None:
        """`prompts`, one for each row of the batch, are encoded once each, and each by itself:
        what a row gets does not depend on the others."""
        self._model = model
        self._sampler = sampler
        distinct = list(dict.fromkeys(prompts))
        position = {prompt: row for row, prompt in enumerate(distinct)}
        self._conditioning = model.encode_prompts(distinct, sampler.text_tokens)
        self._prompt_rows = torch.tensor([position[prompt] for prompt in prompts])

    def micro_batches(self, terms: Terms, size: int) -> Iterator[MicroBatch]:
        """All rows of `terms`, in order, `size` at a time."""
        count = len(terms)
        for first in range(0, count, size):
            index = torch.arange(first, min(first + size, count))
            yield MicroBatch(terms.select(index, self._model.device), size)

    def velocity(self, batch: MicroBatch) -> Tensor:
        """The model's velocities [rows, T, C], without the padding; differentiable."""
        terms = batch.terms
        rows = len(terms)
        padded = torch.arange(batch.size).clamp(max=rows - 1)
        prompts = self._prompt_rows[terms.samples.cpu()[padded]]
        velocity = self._model.velocity(
            terms.latents[padded],
            terms.sigmas[padded],
            self._conditioning.select(prompts),
            height=self._sampler.height,
            width=self._sampler.width,
            frames=self._sampler.frames,
            guidance=self._sampler.guidance,
        )
        return velocity[:rows]

    def idle(self, terms: Terms) -> Tensor:
        """Velocities [1, T, C] of nobody's latents, for ranks that must keep step with others."""
        nothing = terms.latents.new_zeros(1, *terms.latents.shape[1:], device=self._model.device)
        return self._model.velocity(
            nothing,
            torch.full((1,), 0.5, device=self._model.device),
            self._conditioning.select([0]),
            height=self._sampler.height,
            width=self._sampler.width,
            frames=self._sampler.frames,
            guidance=self._sampler.guidance,
        )
