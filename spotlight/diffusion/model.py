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

NEGATIVE = "negative "
"""Names of tensors begin with this where a prompt is guided against them."""


@dataclass(frozen=True)
class Conditioning:
    """Encoded prompts: named tensors [B, ...], such as `embeds` [B, L, D] float32, `mask` [B, L]
    bool, true where a token is real, and `pooled` [B, D] float32.

    L is one length for all requests with the same settings, so that neither the batch nor its order
    changes what a forward pass computes.
    """

    tensors: Mapping[str, Tensor]

    @property
    def negative(self) -> Conditioning | None:
        """What these prompts are guided against, where that depends on the prompt: with the same
        image. None where it does not.
        """
        own = {
            name.removeprefix(NEGATIVE): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(NEGATIVE)
        }
        return Conditioning({**self.tensors, **own}) if own else None

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def select(self, indices: Sequence[int] | Tensor) -> Conditioning:
        """The rows at `indices`, in that order, repeated where an index is repeated."""
        device = next(iter(self.tensors.values())).device
        index = torch.as_tensor(indices, dtype=torch.long, device=device)
        return Conditioning({name: tensor[index] for name, tensor in self.tensors.items()})


class DiffusionModel(Protocol):
    """A text-to-image, or text-to-video, flow model with the weights of one worker."""

    transformer: torch.nn.Module
    """What is trained; with adapters injected when the job tunes adapters."""

    @property
    def device(self) -> torch.device:
        """Where forward passes run."""
        ...

    @property
    def embeds_guidance(self) -> bool:
        """Whether guidance is an input of the transformer, and takes no second pass."""
        ...

    def latent_shape(self, height: int, width: int, frames: int = 1) -> tuple[int, int]:
        """(tokens, channels) of the packed latents of a `height` x `width` pixel image or video.

        Raises `JobError` naming `sampler.height`, `sampler.width` or `sampler.frames` when the size
        does not fit the patches.
        """
        ...

    def encode_prompts(self, prompts: Sequence[str], tokens: int | None = None) -> Conditioning:
        """Encode prompts, padded to so many `tokens` where the family has a choice, or to as many
        as it can read; those used last are cached by prompt. Raises `JobError` for one that is
        longer.
        """
        ...

    def velocity(
        self,
        latents: Tensor,
        sigmas: Tensor,
        conditioning: Conditioning,
        *,
        height: int,
        width: int,
        frames: int = 1,
        guidance: float = 1.0,
        next_sigmas: Tensor | None = None,
    ) -> Tensor:
        """v = eps - x0 for latents [B, T, C] float32 at sigmas [B]; [B, T, C] float32,
        differentiable.

        With `guidance` above 1: classifier-free guidance against the negative prompt, as the
        family's pipeline does it; a transformer that embeds guidance takes it as an input instead.
        Families that predict the average velocity of a step (`Family.any_step`) give that of the
        step to `next_sigmas` [B]; without these, and in all other families, it is the velocity at
        `sigmas`.
        """
        ...

    def checkpoint_activations(self, enabled: bool) -> None:
        """Whether backward passes compute every block a second time instead of keeping what the
        forward pass made of it; passes without gradients stay as they are.
        """
        ...

    def decode(self, latents: Tensor, height: int, width: int, frames: int = 1) -> np.ndarray:
        """Images, uint8 [B, H, W, 3] RGB, of clean latents [B, T, C], or videos [B, F, H, W, 3] of
        more frames than one; raises `NotFinite` with those that are not.
        """
        ...

    def sigmas(
        self, steps: int, height: int, width: int, shift: float | None, frames: int = 1
    ) -> Tensor:
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
