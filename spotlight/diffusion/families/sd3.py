"""Stable Diffusion 3 and 3.5: two CLIP encoders beside T5, and pooled vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from spotlight.diffusion.activations import Activations, Block, Pass
from spotlight.diffusion.checkpoint_files import wrong
from spotlight.diffusion.families.autoencoders import decode_kl, inspect_kl
from spotlight.diffusion.families.base import (
    CheckpointFolder,
    Facts,
    Family,
    ModelInput,
    Size,
    TransformerConfig,
)
from spotlight.diffusion.families.joint_blocks import JOINT_ATTENTION, FeedForward, JointBlocks
from spotlight.diffusion.families.passes import forward
from spotlight.diffusion.families.prompts import (
    CLIP_TOKENS,
    T5,
    Clip,
    read_clip,
    read_t5,
    too_long_for_t5,
)
from spotlight.diffusion.geometry import Geometry, pack, unpack

if TYPE_CHECKING:
    from torch import Tensor

_T5_TOKENS = 256


class _Transformer(TransformerConfig, frozen=True, kw_only=True):
    """See `TransformerConfig`."""

    patch_size: Size = 2
    in_channels: Size = 16
    out_channels: Size | None = 16
    num_layers: Size = 18
    attention_head_dim: Size = 64
    num_attention_heads: Size = 18
    joint_attention_dim: Size = 4096
    pooled_projection_dim: Size = 2048
    pos_embed_max_size: Size = 96
    dual_attention_layers: tuple[int, ...] = ()


class StableDiffusion3(Family):
    """See `Family`."""

    name = "sd3"
    pipeline = "StableDiffusion3Pipeline"
    transformer = "SD3Transformer2DModel"
    vae = "AutoencoderKL"
    text_encoders: ClassVar[Mapping[str, str]] = {
        "text_encoder": "CLIPTextModelWithProjection",
        "text_encoder_2": "CLIPTextModelWithProjection",
        "text_encoder_3": "T5EncoderModel",
    }
    tokenizers = ("tokenizer", "tokenizer_2", "tokenizer_3")
    lora_targets = JOINT_ATTENTION
    """The list is Flow-GRPO's."""
    untrained = frozenset({"pos_embed.pos_embed"})
    own_spacing = True
    most_tokens = _T5_TOKENS
    attention: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "transformer_blocks.*.attn": ("hidden_states", "encoder_hidden_states"),
        "transformer_blocks.*.attn2": ("hidden_states",),
    }
    cuts: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "transformer_blocks.0": {"hidden_states": 1, "encoder_hidden_states": 1}
    }
    gathers: ClassVar[Mapping[str, int]] = {"proj_out": 1}

    def name_in_comfyui(self, module: str) -> str:
        """It knows diffusers' names, and cuts its own fused matrices."""
        return f"transformer.{module}"

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        path = folder.config_path("transformer")
        config = folder.config("transformer", _Transformer)
        clips = [folder.config(part, Clip) for part in ("text_encoder", "text_encoder_2")]
        t5 = folder.config("text_encoder_3", T5)
        latent_channels, scale, decoded = inspect_kl(folder)
        config.require_channels(path, "the VAE's", latent_channels)
        width = config.joint_attention_dim
        config.require(path, "joint_attention_dim", "d_model of text_encoder_3", t5.d_model)
        pooled = sum(clip.projection_dim for clip in clips)
        both = "projection_dim of both CLIP encoders"
        config.require(path, "pooled_projection_dim", both, pooled)
        if sum(clip.hidden_size for clip in clips) > width:
            raise wrong(path, f"has joint_attention_dim {width}, less than both CLIP encoders give")
        geometry = Geometry(
            config.patch_size,
            config.patch_size * scale,
            config.in_channels * config.patch_size**2,
            longest_edge=config.pos_embed_max_size,
        )
        text = CLIP_TOKENS + _T5_TOKENS
        return Facts(
            geometry,
            config.num_attention_heads,
            text,
            config,
            conditioning=text * width + pooled,
            decoded=decoded,
        )

    def too_long(self, folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
        """See `Family`."""
        return too_long_for_t5(folder / "tokenizer_3", prompts, most)

    def encode(self, parts: Mapping[str, Any], prompt: str) -> dict[str, Tensor]:
        """The hidden states of both CLIP encoders side by side, those of T5 behind them, and both
        pooled vectors.
        """
        t5 = read_t5(parts, "_3", prompt, _T5_TOKENS)
        embeds = t5.new_zeros(CLIP_TOKENS + len(t5), t5.shape[1])
        embeds[CLIP_TOKENS:] = t5
        clips = [read_clip(parts, number, prompt) for number in ("", "_2")]
        pooled = t5.new_zeros(sum(clip.text_embeds.shape[1] for clip in clips))
        column = row = 0
        for clip in clips:
            hidden, vector = clip.hidden_states[-2][0], clip.text_embeds[0]
            embeds[:CLIP_TOKENS, column : column + hidden.shape[1]] = hidden
            pooled[row : row + len(vector)] = vector
            column, row = column + hidden.shape[1], row + len(vector)
        return {"embeds": embeds, "pooled": pooled}

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`; the transformer takes and gives a picture of latents."""
        patch = transformer.config.patch_size
        velocity = forward(
            transformer,
            given,
            latents=unpack(given.latents, given.grid, patch)[:, :, 0],
            timestep=given.sigmas * 1000,
            pooled_projections=given.text("pooled", transformer.dtype),
        )
        return pack(velocity.unsqueeze(2), patch)

    def activations(self, facts: Facts, step: Pass) -> Activations:
        """See `Family`; in the last block text ends behind the attention."""
        config = cast(_Transformer, facts.config)
        text = CLIP_TOKENS + _T5_TOKENS
        kind = JointBlocks(
            step,
            text,
            config.width,
            config.num_attention_heads,
            FeedForward.of_diffusers(("ff", "ff_context"), config.width),
            native_norm=False,
            copies_output=True,
        )
        blocks = [
            kind.block(
                dual=number in config.dual_attention_layers,
                ends_text=number == config.num_layers - 1,
            )
            for number in range(config.num_layers)
        ]
        outside = Block(step)
        outside.given((), "latents", step.tokens, config.in_channels * config.patch_size**2)
        outside.given(("context_embedder",), "text", text, config.joint_attention_dim)
        return kind.activations(blocks, outside)

    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """See `Family`."""
        return decode_kl(vae, latents)
