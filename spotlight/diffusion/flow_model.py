"""The model of any family behind the `DiffusionModel` seam.

What is particular to a family is in its file under `families/`. Text encoder and image codec are
exchangeable, so that the same class runs a whole checkpoint and tiny pixel-space ones. On CPU every
forward pass is float32.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from spotlight.condition_images import named, with_image
from spotlight.diffusion.experts import TIMES
from spotlight.diffusion.families.base import Family, ModelInput
from spotlight.diffusion.images import ImageCodec, to_uint8
from spotlight.diffusion.model import NEGATIVE, Conditioning
from spotlight.diffusion.schedule import Scheduler, flow_sigmas, shifts_dynamically
from spotlight.diffusion.text import Encoded, TextEncoder
from spotlight.errors import CheckpointError

_computed_twice = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Nothing in a block is random, and reading the state of a generator would wait for the device."""
CACHED_PROMPTS = 256
"""How many embeddings are kept."""


def trainable_state(transformer: torch.nn.Module) -> dict[str, Tensor]:
    """See `DiffusionModel.trainable_state`."""
    return {
        name: parameter.detach()
        for name, parameter in transformer.named_parameters()
        if parameter.requires_grad
    }


class FlowModel:
    """A transformer of a family with its text encoders, schedule and image codec."""

    def __init__(
        self,
        family: Family,
        transformer: Any,
        scheduler: Scheduler,
        text_encoder: TextEncoder,
        codec: ImageCodec,
        negative_prompt: str = " ",
        guidance_2: float | None = None,
    ) -> None:
        self.transformer: Any = transformer
        self._family = family
        self._scheduler = scheduler
        self._text_encoder = text_encoder
        self._codec = codec
        self._negative_prompt = negative_prompt
        self._guidance_2 = guidance_2
        self._encoded: dict[str, Encoded] = {}

    def with_transformer(self, family: Family, transformer: Any, scheduler: Scheduler) -> FlowModel:
        """One that denoises by another transformer and schedule, with this one's text encoders,
        embeddings and image codec."""
        other = copy.copy(self)
        other.transformer, other._family, other._scheduler = transformer, family, scheduler
        return other

    @property
    def device(self) -> torch.device:
        """Where forward passes run."""
        device: torch.device = next(self.transformer.parameters()).device
        return device

    @property
    def embeds_guidance(self) -> bool:
        """As its family knows by its configuration."""
        return self._family.embeds_guidance(self.transformer)

    def latent_shape(self, height: int, width: int, frames: int = 1) -> tuple[int, int]:
        """(tokens, channels) of packed latents; raises `JobError` naming the size that does not
        fit.
        """
        geometry = self._codec.geometry
        return geometry.grid(height, width, frames).tokens, geometry.channels

    def encode_prompts(self, prompts: Sequence[str], tokens: int | None = None) -> Conditioning:
        """Embeddings of one length; each prompt is encoded by itself, and kept a while."""
        negatives = {prompt: self._negative_of(prompt) for prompt in prompts}
        known = self._encode([*prompts, *filter(None, negatives.values())])
        encoded = [self._padded(known, prompt, negatives[prompt], tokens) for prompt in prompts]
        return Conditioning(
            {
                name: torch.stack([each[name] for each in encoded]).to(self.device)
                for name in encoded[0]
            }
        )

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
        """v = eps - x0, [B, T, C] float32."""
        grid = self._codec.geometry.grid(height, width, frames)
        told = self._family.told(self._scheduler, sigmas)
        ends = told if next_sigmas is None else self._family.told(self._scheduler, next_sigmas)

        def predict(of: Conditioning) -> Tensor:
            given = ModelInput(latents, told, ends, of.tensors, grid, guidance)
            parts = given.apart() if self._family.one_by_one else (given,)
            velocities = [self._family.velocity(self.transformer, part) for part in parts]
            return torch.cat(velocities).float()

        positive = predict(conditioning)
        if guidance == 1.0 or self.embeds_guidance:
            return positive
        negative = conditioning.negative
        if negative is None:
            tokens = conditioning.tensors["embeds"].shape[1]
            same = self.encode_prompts([self._negative_prompt], tokens)
            negative = same.select([0] * len(latents))
        return self._family.guide(positive, predict(negative), self._scale(told, guidance))

    def checkpoint_activations(self, enabled: bool) -> None:
        """By the transformer's own switch, block by block."""
        if enabled:
            self.transformer.enable_gradient_checkpointing(_computed_twice)
        else:
            self.transformer.disable_gradient_checkpointing()

    def decode(self, latents: Tensor, height: int, width: int, frames: int = 1) -> np.ndarray:
        """Images, uint8 [B, H, W, 3], or videos [B, F, H, W, 3]: decoded one after the other, so
        that memory and bits never depend on the batch."""
        grid = self._codec.geometry.grid(height, width, frames)
        each = latents.to(self.device).split(1)
        return to_uint8(self._codec.decode(one, grid)[0] for one in each)

    def sigmas(
        self, steps: int, height: int, width: int, shift: float | None, frames: int = 1
    ) -> Tensor:
        """The schedule [steps + 1], float32 on the CPU."""
        tokens, _ = self.latent_shape(height, width, frames)
        family, scheduler, mu = self._family, self._scheduler, None
        if shifts_dynamically(scheduler):
            mu = family.dynamic_shift(scheduler, tokens, steps)
        return flow_sigmas(scheduler, steps, mu, shift, own_spacing=family.own_spacing)

    def trainable_state(self) -> dict[str, Tensor]:
        """The parameters that require gradients, by name; they share memory with the model."""
        return trainable_state(self.transformer)

    @torch.no_grad()
    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy in place; raises `CheckpointError` for another set of names or another shape."""
        own = self.trainable_state()
        if own.keys() != state.keys():
            odd = sorted(own.keys() ^ state.keys())
            raise CheckpointError(
                f"weights: {len(odd)} names do not match this model (first: {odd[0]}); they"
                f" are of another job"
            )
        for name, tensor in own.items():
            if tensor.shape != state[name].shape:
                raise CheckpointError(
                    f"weights: {name} has shape {tuple(state[name].shape)}, but this model"
                    f" needs {tuple(tensor.shape)}"
                )
            tensor.copy_(state[name])

    def _scale(self, told: Tensor, guidance: float) -> float | Tensor:
        """Of every sample, or of each: of two transformers the second may have its own."""
        if self._guidance_2 is None:
            return guidance
        is_first = self.transformer.is_first(told * TIMES)
        return torch.where(is_first, guidance, self._guidance_2)[:, None, None]

    def _negative_of(self, prompt: str) -> str:
        """What it is guided against, where that has an image, too; empty where it has none."""
        if not self._family.image_processor:
            return ""
        digest = named(prompt).digest
        return with_image(self._negative_prompt, digest) if digest else ""

    def _padded(
        self, known: Mapping[str, Encoded], prompt: str, negative: str, tokens: int | None
    ) -> Encoded:
        encoded = self._text_encoder.padded(known[prompt], tokens)
        if negative:
            other = self._text_encoder.padded(known[negative], tokens)
            encoded |= {NEGATIVE + name: other[name] for name in ("embeds", "mask")}
        return encoded

    def _encode(self, prompts: Sequence[str]) -> dict[str, Encoded]:
        # A thread that was left behind may be at it too.
        found = {prompt: self._encoded.pop(prompt, None) for prompt in prompts}
        missing = [prompt for prompt, encoded in found.items() if encoded is None]
        made = dict(zip(missing, self._text_encoder.encode(missing), strict=True))
        known = {prompt: encoded or made[prompt] for prompt, encoded in found.items()}
        self._encoded |= known
        while len(self._encoded) > CACHED_PROMPTS:
            self._encoded.pop(next(iter(self._encoded)), None)  # used least recently
        return known
