"""The seam between Spotlight and a diffusion model: prompts, velocities, images and trainable
weights.

Samplers and the trainer know a model only through `DiffusionModel`. Latents are packed ([B, tokens,
channels], float32); flow time sigma runs from 1 (noise) to 0 (image): x_sigma = (1 - sigma) * x0 +
sigma * eps, and the model predicts
v = eps - x0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class PromptEmbeddings:
    """Encoded prompts: `embeds` [B, L, D] float32 and `mask` [B, L] bool, true where a token is
    real.

    L is one fixed length per model, so that neither the batch nor its order changes what a forward
    pass computes.
    """

    embeds: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return self.embeds.shape[0]

    def select(self, indices: Sequence[int] | Tensor) -> PromptEmbeddings:
        """The rows at `indices`, in that order, repeated where an index is repeated."""
        index = torch.as_tensor(indices, dtype=torch.long, device=self.embeds.device)
        return PromptEmbeddings(self.embeds[index], self.mask[index])


class DiffusionModel(Protocol):
    """A text-to-image flow model with the weights of one worker."""

    transformer: torch.nn.Module
    """What is trained; with adapters injected when the job tunes adapters."""

    @property
    def device(self) -> torch.device:
        """Where forward passes run."""
        ...

    def latent_shape(self, height: int, width: int) -> tuple[int, int]:
        """(tokens, channels) of the packed latents of a `height` x `width` pixel image.

        Raises `CheckpointError` naming `sampler.height` or `sampler.width` when the size does not
        fit the patches.
        """
        ...

    def encode_prompts(self, prompts: Sequence[str]) -> PromptEmbeddings:
        """Encode prompts at the model's fixed length; those used last are cached by prompt."""
        ...

    def velocity(
        self,
        latents: Tensor,
        sigmas: Tensor,
        embeddings: PromptEmbeddings,
        *,
        height: int,
        width: int,
        guidance: float = 1.0,
    ) -> Tensor:
        """v = eps - x0 for latents [B, T, C] float32 at sigmas [B]; [B, T, C] float32,
        differentiable.

        With `guidance` above 1: true classifier-free guidance against the negative prompt, rescaled
        per token.
        """
        ...

    def decode(self, latents: Tensor, height: int, width: int) -> np.ndarray:
        """Images, uint8 [B, H, W, 3] RGB, of clean latents [B, T, C]; raises `NotFinite` with those
        that are not.
        """
        ...

    def sigmas(self, steps: int, height: int, width: int, shift: float | None) -> Tensor:
        """The schedule: [steps + 1] float32 on the CPU from 1 down to 0, shifted as the checkpoint
        or `shift` says.
        """
        ...

    def trainable_state(self) -> dict[str, Tensor]:
        """The trainable tensors by name (all weights, or the adapters only), detached but not
        copied.
        """
        ...

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy `state` into the trainable tensors in place.

        Raises `CheckpointError` unless names and shapes are exactly those of `trainable_state`.
        """
        ...
