"""FLUX.2 klein: text of three layers of Qwen3, and blocks with gated feed-forward layers.

The transformer sees the padding of its text. Of each square of 2 x 2 latent pixels the bands have a
mean and a spread of their own, which the autoencoder knows. The shift of the sigmas depends on the
number of steps, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from spotlight.diffusion.activations import Activations, Block, Pass
from spotlight.diffusion.checkpoint_files import read_index, wrong
from spotlight.diffusion.families import qwen_tokens
from spotlight.diffusion.families.autoencoders import decode_bands, inspect_bands
from spotlight.diffusion.families.base import (
    INDEX,
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
from spotlight.diffusion.families.prompts import read_chat
from spotlight.diffusion.families.qwen_tokens import QWEN_CHAT_WITHOUT_THOUGHTS
from spotlight.diffusion.geometry import Geometry

if TYPE_CHECKING:
    from torch import Tensor

_TOKENS = QWEN_CHAT_WITHOUT_THOUGHTS.longest
_LAYERS = (9, 18, 27)
"""Whose hidden states the transformer is given of each token; 0 are the embeddings."""
_PATCH = 2
"""Latent pixels along the edge of a token, whose bands are its channels."""
_MANY_TOKENS = 4300
"""The shift of more image tokens does not depend on the steps."""
_FEW_STEPS, _MANY_STEPS = 10, 200


class _Transformer(TransformerConfig, frozen=True, kw_only=True):
    """See `TransformerConfig`."""

    patch_size: Size = 1
    in_channels: Size = 128
    out_channels: Size | None = None
    num_layers: Size = 8
    num_single_layers: Size = 48
    attention_head_dim: Size = 128
    num_attention_heads: Size = 48
    joint_attention_dim: Size = 15360
    mlp_ratio: float = 3.0
    guidance_embeds: bool = True
    axes_dims_rope: tuple[int, int, int, int] = (32, 32, 32, 32)


class _TextEncoder(msgspec.Struct, frozen=True):
    """text_encoder/config.json; defaults are those of transformers."""

    hidden_size: Size = 4096
    num_hidden_layers: Size = 32


class Flux2Klein(Family):
    """See `Family`."""

    name = "flux2-klein"
    pipeline = "Flux2KleinPipeline"
    transformer = "Flux2Transformer2DModel"
    vae = "AutoencoderKLFlux2"
    text_encoders: ClassVar[Mapping[str, str]] = {"text_encoder": "Qwen3ForCausalLM"}
    tokenizers = ("tokenizer",)
    lora_targets = (
        "attn.to_q",
        "attn.to_k",
        "attn.to_v",
        "attn.to_out.0",
        "attn.add_q_proj",
        "attn.add_k_proj",
        "attn.add_v_proj",
        "attn.to_add_out",
        "ff.linear_in",
        "ff.linear_out",
        "ff_context.linear_in",
        "ff_context.linear_out",
        "attn.to_qkv_mlp_proj",
    )
    """Not the last layer of a single block: its name, attn.to_out, is that of a list of layers in
    the other blocks."""
    most_tokens = _TOKENS
    attention: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "transformer_blocks.*.attn": ("encoder_hidden_states", "hidden_states"),
        "single_transformer_blocks.*.attn": ("encoder_hidden_states", "hidden_states"),
    }

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        path, index = folder.config_path("transformer"), folder.path / INDEX
        config = folder.config("transformer", _Transformer)
        text = folder.config("text_encoder", _TextEncoder)
        channels, edge, decoded = inspect_bands(folder)
        if read_index(index).get("is_distilled"):
            raise wrong(
                index,
                "is of the distilled checkpoint (is_distilled); give the base one to be trained",
            )
        if config.guidance_embeds:
            raise wrong(path, "has guidance_embeds, which the pipeline gives no guidance to")
        require_equal(path, "patch_size", config.patch_size, "that of known models", 1)
        bands = channels * _PATCH**2
        require_equal(path, "in_channels", config.in_channels, "four times the VAE's", bands)
        produced = config.out_channels or config.in_channels
        require_equal(path, "out_channels", produced, "in_channels", config.in_channels)
        require_equal(
            path,
            "joint_attention_dim",
            config.joint_attention_dim,
            "three times hidden_size of text_encoder",
            len(_LAYERS) * text.hidden_size,
        )
        if text.num_hidden_layers < _LAYERS[-1]:
            raise wrong(
                folder.config_path("text_encoder"),
                f"has {text.num_hidden_layers} layers, but the transformer is given layer"
                f" {_LAYERS[-1]}; copy the text_encoder of this very checkpoint",
            )
        require_axes(path, config.axes_dims_rope, config.attention_head_dim)
        return Facts(
            Geometry(1, _PATCH * edge, bands),
            config.num_attention_heads,
            _TOKENS,
            config,
            conditioning=_TOKENS * config.joint_attention_dim,
            decoded=decoded,
        )

    def too_long(self, folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
        """See `Family`."""
        template = QWEN_CHAT_WITHOUT_THOUGHTS
        return qwen_tokens.too_long(folder / "tokenizer", prompts, most, template)

    def encode(self, parts: Mapping[str, Any], prompt: str) -> dict[str, Tensor]:
        """The hidden states of three layers, one behind the other in each token."""
        states = read_chat(parts, prompt, think=False, padded=True).hidden_states
        layers = [states[layer][0] for layer in _LAYERS]
        tokens, width = layers[0].shape
        embeds = layers[0].new_zeros(tokens, len(layers), width).float()
        for number, layer in enumerate(layers):
            embeds[:, number] = layer
        return {"embeds": embeds.flatten(1)}

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`."""
        dtype = transformer.dtype
        text = given.text("embeds", dtype)
        velocity: Tensor = transformer(
            hidden_states=given.latents.to(dtype),
            timestep=given.rounded_sigmas(dtype),
            encoder_hidden_states=text,
            txt_ids=_text_places(given, text.shape[1]),
            img_ids=_places(given),
            return_dict=False,
        )[0]
        return velocity

    def dynamic_shift(self, scheduler: Any, tokens: int, steps: int) -> float:
        """mu that the pipeline computes whatever its scheduler says (`compute_empirical_mu`): of
        few tokens it is linear in the steps, between lines in the tokens that hold for 10 and 200.
        """
        many = 0.00016927 * tokens + 0.45666666
        if tokens > _MANY_TOKENS:
            return many
        few = 8.73809524e-05 * tokens + 1.89833333
        slope = (many - few) / (_MANY_STEPS - _FEW_STEPS)
        return many + slope * (steps - _MANY_STEPS)

    def activations(self, facts: Facts, step: Pass) -> Activations:
        """See `Family`."""
        config = cast(_Transformer, facts.config)
        kind = JointBlocks(
            step,
            _TOKENS,
            config.width,
            config.num_attention_heads,
            FeedForward(
                ("ff", "ff_context"),
                ("linear_in", "linear_out"),
                int(config.mlp_ratio * config.width),
                gated=True,
            ),
            native_norm=True,
            copies_output=False,
        )
        blocks = [kind.block()] * config.num_layers
        single = [kind.fused_block()] * config.num_single_layers
        outside = Block(step)
        outside.given(("x_embedder",), "latents", step.tokens, config.in_channels)
        outside.given(("context_embedder",), "text", _TOKENS, config.joint_attention_dim)
        return kind.activations([*blocks, *single], outside)

    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """See `Family`."""
        return decode_bands(vae, latents)


def _places(given: ModelInput) -> Tensor:
    """Of each image token (0, row, column, 0), [1, T, 4]."""
    latents, grid = given.latents, given.grid
    places = latents.new_zeros(1, grid.rows, grid.columns, 4)
    places[..., 1] = latents.new_tensor(range(grid.rows))[:, None]
    places[..., 2] = latents.new_tensor(range(grid.columns))
    return places.flatten(1, 2)


def _text_places(given: ModelInput, tokens: int) -> Tensor:
    """Of each token of text (0, 0, 0, number), [1, tokens, 4]."""
    places = given.latents.new_zeros(1, tokens, 4)
    places[..., 3] = given.latents.new_tensor(range(tokens))
    return places
