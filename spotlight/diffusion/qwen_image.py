"""The Qwen-Image family behind the `DiffusionModel` seam.

The transformer is diffusers' QwenImageTransformer2DModel. Text encoder and image codec are
exchangeable, so that the same class runs Qwen-Image itself and tiny pixel-space checkpoints. On CPU
every forward pass is float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor

from spotlight.diffusion.images import ImageCodec, to_uint8, token_grid
from spotlight.diffusion.model import PromptEmbeddings
from spotlight.diffusion.schedule import Scheduler, flow_sigmas
from spotlight.diffusion.text import TextEncoder, stack_encoded
from spotlight.errors import CheckpointError

NEGATIVE_PROMPT = " "
"""What guidance pushes away from; a single space, as Qwen-Image's authors advise."""

CACHED_PROMPTS = 256
"""So many embeddings are kept."""


class QwenImageModel:
    """A Qwen-Image transformer with its text encoder, schedule and image codec."""

    def __init__(
        self,
        transformer: QwenImageTransformer2DModel,
        scheduler: Scheduler,
        text_encoder: TextEncoder,
        codec: ImageCodec,
        negative_prompt: str = NEGATIVE_PROMPT,
    ) -> None:
        """Raises `CheckpointError` naming the field in which the parts do not fit each other."""
        _check_fit(transformer, text_encoder, codec)
        self.transformer: Any = transformer
        self._scheduler = scheduler
        self._text_encoder = text_encoder
        self._codec = codec
        self._negative_prompt = negative_prompt
        self._encoded: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        """Where forward passes run."""
        device: torch.device = next(self.transformer.parameters()).device
        return device

    def latent_shape(self, height: int, width: int) -> tuple[int, int]:
        """(tokens, channels) of packed latents; raises `CheckpointError` naming the size that does
        not fit.
        """
        rows, columns = token_grid(self._codec, height, width)
        return rows * columns, self._codec.channels

    def encode_prompts(self, prompts: Sequence[str]) -> PromptEmbeddings:
        """Embeddings at the fixed length; each prompt is encoded by itself, and kept a while."""
        embeds, mask = stack_encoded([self._encode(prompt) for prompt in prompts])
        return PromptEmbeddings(embeds.to(self.device), mask.to(self.device))

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
        """v = eps - x0, [B, T, C] float32.

        True classifier-free guidance as in diffusers' QwenImagePipeline: v = neg + guidance * (pos
        - neg), then every token is rescaled to the norm of `pos`.
        """
        positive = self._forward(latents, sigmas, embeddings, height, width)
        if guidance == 1.0:
            return positive
        unconditional = self.encode_prompts([self._negative_prompt]).select([0] * len(latents))
        negative = self._forward(latents, sigmas, unconditional, height, width)
        combined = negative + guidance * (positive - negative)
        norms: list[Tensor] = [
            torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (positive, combined)
        ]
        return combined * (norms[0] / norms[1])

    def decode(self, latents: Tensor, height: int, width: int) -> np.ndarray:
        """Images, uint8 [B, H, W, 3]."""
        rows, columns = token_grid(self._codec, height, width)
        return to_uint8(self._codec.decode(latents.to(self.device), rows, columns))

    def sigmas(self, steps: int, height: int, width: int, shift: float | None) -> Tensor:
        """The schedule [steps + 1], float32 on the CPU."""
        tokens, _ = self.latent_shape(height, width)
        return flow_sigmas(self._scheduler, steps, tokens, shift)

    def trainable_state(self) -> dict[str, Tensor]:
        """The parameters that require gradients, by name; they share memory with the model."""
        return {
            name: parameter.detach()
            for name, parameter in self.transformer.named_parameters()
            if parameter.requires_grad
        }

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

    def _encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        encoded = self._encoded.pop(prompt, None) or self._text_encoder.encode(prompt)
        self._encoded[prompt] = encoded
        if len(self._encoded) > CACHED_PROMPTS:
            # Used least recently; a thread that was left behind may be at it too.
            self._encoded.pop(next(iter(self._encoded)), None)
        return encoded

    def _forward(
        self, latents: Tensor, sigmas: Tensor, embeddings: PromptEmbeddings, height: int, width: int
    ) -> Tensor:
        rows, columns = token_grid(self._codec, height, width)
        dtype = self.transformer.dtype
        velocity: Tensor = self.transformer(
            hidden_states=latents.to(dtype),
            timestep=sigmas.to(dtype),
            encoder_hidden_states=embeddings.embeds.to(dtype),
            # Whether a mask is given must not depend on the batch: attention uses another kernel
            # with one.
            encoder_hidden_states_mask=embeddings.mask if self._text_encoder.pads else None,
            img_shapes=[[(1, rows, columns)]] * len(latents),
            return_dict=False,
        )[0]
        return velocity.float()


def _check_fit(
    transformer: QwenImageTransformer2DModel, text_encoder: TextEncoder, codec: ImageCodec
) -> None:
    config: Any = transformer.config  # type: ignore[attr-defined]
    if config.in_channels != codec.channels:
        raise CheckpointError(
            f"transformer.in_channels: {config.in_channels}, but packed latents have"
            f" {codec.channels} channels"
        )
    produced = config.patch_size**2 * (config.out_channels or config.in_channels)
    if produced != codec.channels:
        raise CheckpointError(
            f"transformer.patch_size: {config.patch_size}^2 x {config.out_channels}"
            f" out_channels make {produced} channels, but packed latents have {codec.channels}"
        )
    if config.joint_attention_dim != text_encoder.dim:
        raise CheckpointError(
            f"transformer.joint_attention_dim: {config.joint_attention_dim}, but the text"
            f" encoder gives {text_encoder.dim} channels"
        )
    if sum(config.axes_dims_rope) != config.attention_head_dim:
        raise CheckpointError(
            f"transformer.attention_head_dim: {config.attention_head_dim}, but axes_dims_rope"
            f" {tuple(config.axes_dims_rope)} add up to {sum(config.axes_dims_rope)}"
        )
