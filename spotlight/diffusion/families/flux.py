"""FLUX.1: T5 for the text, a pooled vector of CLIP, and guidance as an input of the transformer.

A transformer that embeds guidance (FLUX.1-dev) takes `sampler.guidance` as that input and needs no
second pass; one that does not (FLUX.1-schnell) is guided against the negative prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from spotlight.diffusion.activations import Activations, Block, Pass
from spotlight.diffusion.families.autoencoders import decode_kl, inspect_kl
from spotlight.diffusion.families.base import (
    CheckpointFolder,
    Facts,
    Family,
    ModelInput,
    Size,
    TransformerConfig,
    require_axes,
    require_equal,
)
from spotlight.diffusion.families.joint_blocks import FeedForward, JointBlocks
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
    out_channels: Size | None = None
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
        "attn.to_q",
        "attn.to_k",
        "attn.to_v",
        "attn.to_out.0",
        "attn.add_q_proj",
        "attn.add_k_proj",
        "attn.add_v_proj",
        "attn.to_add_out",
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
        require_equal(path, "patch_size", config.patch_size, "that of known models", 1)
        require_equal(path, "in_channels", config.in_channels, "four times the VAE's", packed)
        produced = config.out_channels or config.in_channels
        require_equal(path, "out_channels", produced, "in_channels", config.in_channels)
        require_equal(
            path,
            "joint_attention_dim",
            config.joint_attention_dim,
            "d_model of text_encoder_2",
            t5.d_model,
        )
        require_equal(
            path,
            "pooled_projection_dim",
            config.pooled_projection_dim,
            "hidden_size of text_encoder",
            clip.hidden_size,
        )
        require_axes(path, config.axes_dims_rope, config.attention_head_dim)
        return Facts(
            Geometry(_PACKED, _PACKED * scale, packed),
            config.num_attention_heads,
            _T5_TOKENS,
            config,
            embeds_guidance=config.guidance_embeds,
            conditioning=_T5_TOKENS * t5.d_model + clip.hidden_size,
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
        text = given.text("embeds", dtype)
        velocity: Tensor = transformer(
            hidden_states=latents.to(dtype),
            timestep=given.rounded_sigmas(dtype),
            guidance=latents.new_full((len(latents),), given.guidance)
            if self.embeds_guidance(transformer)
            else None,
            encoder_hidden_states=text,
            pooled_projections=given.text("pooled", dtype),
            txt_ids=latents.new_zeros(text.shape[1], 3),
            img_ids=_places(given),
            return_dict=False,
        )[0]
        return velocity

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
        blocks = [kind.block()] * config.num_layers
        single = [kind.single_block()] * config.num_single_layers
        outside = Block(step)
        outside.given(("x_embedder",), "latents", step.tokens, config.in_channels)
        outside.given(("context_embedder",), "text", _T5_TOKENS, config.joint_attention_dim)
        return kind.activations([*blocks, *single], outside)

    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """See `Family`."""
        return decode_kl(vae, latents)


def _places(given: ModelInput) -> Tensor:
    """Of each token (0, row, column), [T, 3]."""
    latents, grid = given.latents, given.grid
    places = latents.new_zeros(grid.rows, grid.columns, 3)
    places[..., 1] = latents.new_tensor(range(grid.rows))[:, None]
    places[..., 2] = latents.new_tensor(range(grid.columns))
    return places.reshape(-1, 3)
