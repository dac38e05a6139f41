"""FLUX.1: T5 for the text, a pooled vector of CLIP, and guidance as an input of the transformer.

A transformer that embeds guidance (FLUX.1-dev) takes `sampler.guidance` as that input and needs no
second pass; one that does not (FLUX.1-schnell) is guided against the negative prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from spotlight.diffusion.activations import Activations, Pass
from spotlight.diffusion.families.autoencoders import decode_kl, inspect_kl
from spotlight.diffusion.families.base import (
    CheckpointFolder,
    Facts,
    Family,
    ModelInput,
    Size,
    TransformerConfig,
    require_axes,
)
from spotlight.diffusion.families.joint_blocks import JOINT_ATTENTION, FeedForward, JointBlocks
from spotlight.diffusion.families.passes import forward, places
from spotlight.diffusion.families.prompts import T5, Clip, read_clip, read_t5, too_long_for_t5
from spotlight.diffusion.geometry import Geometry

if TYPE_CHECKING:
    from torch import Tensor

_T5_TOKENS = 512
_PACKED = 2
"""Latent pixels along the edge of a token; the transformer itself sees tokens only."""


class _Transformer(TransformerConfig, frozen=True, kw_only=True):
    """See `TransformerConfig`."""

    patch_size: Size = 1
    in_channels: Size = 64
    num_layers: Size = 19
    num_single_layers: Size = 38
    attention_head_dim: Size = 128
    num_attention_heads: Size = 24
    joint_attention_dim: Size = 4096
    pooled_projection_dim: Size = 768
    guidance_embeds: bool = False
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)


class Flux(Family):
    """See `Family`."""

    name = "flux"
    pipeline = "FluxPipeline"
    transformer = "FluxTransformer2DModel"
    vae = "AutoencoderKL"
    text_encoders: ClassVar[Mapping[str, str]] = {
        "text_encoder": "CLIPTextModel",
        "text_encoder_2": "T5EncoderModel",
    }
    tokenizers = ("tokenizer", "tokenizer_2")
    lora_targets = (
        *JOINT_ATTENTION,
        "ff.net.0.proj",
        "ff.net.2",
        "ff_context.net.0.proj",
        "ff_context.net.2",
    )
    """The list is Flow-GRPO's."""
    most_tokens = _T5_TOKENS
    attention: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "transformer_blocks.*.attn": ("hidden_states", "encoder_hidden_states"),
        "single_transformer_blocks.*.attn": ("hidden_states", "encoder_hidden_states"),
    }

    def name_in_comfyui(self, module: str) -> str:
        """It knows diffusers' names, and cuts its own fused matrices."""
        return f"transformer.{module}"

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        path = folder.config_path("transformer")
        config = folder.config("transformer", _Transformer)
        clip, t5 = folder.config("text_encoder", Clip), folder.config("text_encoder_2", T5)
        latent_channels, scale, decoded = inspect_kl(folder)
        packed = latent_channels * _PACKED**2
        config.require(path, "patch_size", "that of known models", 1)
        config.require_channels(path, "four times the VAE's", packed)
        config.require(path, "joint_attention_dim", "d_model of text_encoder_2", t5.d_model)
        pooled = clip.hidden_size
        config.require(path, "pooled_projection_dim", "hidden_size of text_encoder", pooled)
        require_axes(path, config.axes_dims_rope, config.attention_head_dim)
        return Facts(
            Geometry(_PACKED, _PACKED * scale, packed),
            config.num_attention_heads,
            _T5_TOKENS,
            config,
            embeds_guidance=config.guidance_embeds,
            conditioning=_T5_TOKENS * t5.d_model + pooled,
            decoded=decoded,
        )

    def too_long(self, folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
        """See `Family`."""
        return too_long_for_t5(folder / "tokenizer_2", prompts, most)

    def encode(self, parts: Mapping[str, Any], prompt: str) -> dict[str, Tensor]:
        """The hidden states of T5, and the pooled vector of CLIP."""
        return {
            "embeds": read_t5(parts, "_2", prompt, _T5_TOKENS),
            "pooled": read_clip(parts, "", prompt).pooler_output[0].float(),
        }

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`."""
        dtype, latents = transformer.dtype, given.latents
        return forward(
            transformer,
            given,
            timestep=given.rounded_sigmas(dtype),
            guidance=latents.new_full((len(latents),), given.guidance)
            if self.embeds_guidance(transformer)
            else None,
            pooled_projections=given.text("pooled", dtype),
            txt_ids=latents.new_zeros(given.conditioning["embeds"].shape[1], 3),
            img_ids=places(given, 3),
        )

    def embeds_guidance(self, transformer: Any) -> bool:
        """See `Family`."""
        return bool(transformer.config.guidance_embeds)

    def activations(self, facts: Facts, step: Pass) -> Activations:
        """See `Family`."""
        config = cast(_Transformer, facts.config)
        kind = JointBlocks(
            step,
            _T5_TOKENS,
            config.width,
            config.num_attention_heads,
            FeedForward.of_diffusers(("ff", "ff_context"), config.width),
            native_norm=True,
            copies_output=False,
        )
        single = [kind.single_block()] * config.num_single_layers
        return kind.of_flux(
            config.num_layers, single, config.in_channels, config.joint_attention_dim
        )

    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """See `Family`."""
        return decode_kl(vae, latents)
