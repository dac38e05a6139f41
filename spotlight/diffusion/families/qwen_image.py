"""Qwen-Image: one stream of text from Qwen2.5-VL, guidance that keeps the norm of every token.

A tiny checkpoint may have no VAE, which means pixel space, and a `TokenTextEncoder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from spotlight.diffusion.activations import Activations, Block, Pass
from spotlight.diffusion.checkpoint_files import Shape, wrong
from spotlight.diffusion.families import qwen_tokens
from spotlight.diffusion.families.autoencoders import decode_qwen, inspect_qwen
from spotlight.diffusion.families.base import (
    TOKEN_ENCODER,
    CheckpointFolder,
    Facts,
    Family,
    ModelInput,
    Size,
    TransformerConfig,
    require_axes,
)
from spotlight.diffusion.families.joint_blocks import FeedForward, JointBlocks
from spotlight.diffusion.families.passes import forward
from spotlight.diffusion.families.prompts import read_qwen, refuse_too_long
from spotlight.diffusion.families.qwen_tokens import (
    QWEN_TEMPLATE,
    QWEN_TEMPLATE_TOKENS,
    QWEN_TEXT_LENGTH,
)
from spotlight.diffusion.geometry import Geometry
from spotlight.diffusion.vocabulary import TokenVocabulary

if TYPE_CHECKING:
    from torch import Tensor


class TransformerOfQwen(TransformerConfig, frozen=True, kw_only=True):
    """See `TransformerConfig`."""

    patch_size: Size = 2
    in_channels: Size = 64
    out_channels: Size | None = 16
    num_layers: Size = 60
    attention_head_dim: Size = 128
    num_attention_heads: Size = 24
    joint_attention_dim: Size = 3584
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)


class _TextEncoder(msgspec.Struct, frozen=True):
    """text_encoder/config.json of a `TokenTextEncoder`."""

    dim: Size
    length: Size
    words: tuple[str, ...]
    characters: str


class QwenImage(Family):
    """See `Family`."""

    name = "qwen-image"
    pipeline = "QwenImagePipeline"
    transformer = "QwenImageTransformer2DModel"
    vae = "AutoencoderKLQwenImage"
    text_encoders: ClassVar[Mapping[str, str]] = {
        "text_encoder": "Qwen2_5_VLForConditionalGeneration"
    }
    tokenizers = ("tokenizer",)
    in_pixel_space = True
    lora_targets = (
        "to_q",
        "to_k",
        "to_v",
        "to_out.0",
        "add_q_proj",
        "add_k_proj",
        "add_v_proj",
        "to_add_out",
        "img_mlp.net.0.proj",
        "img_mlp.net.2",
        "txt_mlp.net.0.proj",
        "txt_mlp.net.2",
    )
    """The list is Flow-GRPO's."""
    most_tokens = QWEN_TEXT_LENGTH
    text_lengths: ClassVar[tuple[int, ...]] = (64, 128, QWEN_TEXT_LENGTH)
    attention: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "transformer_blocks.*.attn": ("hidden_states", "encoder_hidden_states")
    }

    def name_in_comfyui(self, module: str) -> str:
        """It has the modules of diffusers."""
        return f"diffusion_model.{module}"

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        path = folder.config_path("transformer")
        config = folder.config("transformer", TransformerOfQwen)
        _check_sizes(path, config)
        _check_fit(path, config, folder.shapes("transformer"))
        geometry, decoded = _geometry(folder, config)
        if config.in_channels != geometry.channels:
            raise wrong(
                path,
                f"in_channels is {config.in_channels}, but tokens have {geometry.channels}"
                " channels",
            )
        vocabulary = None
        if folder.parts["text_encoder"] == TOKEN_ENCODER:
            vocabulary = _vocabulary(folder, config)
        return Facts(
            geometry,
            config.num_attention_heads,
            vocabulary.length if vocabulary else None,
            config,
            vocabulary,
            pixel_space="vae" not in folder.parts,
            conditioning=(vocabulary.length if vocabulary else QWEN_TEXT_LENGTH)
            * config.joint_attention_dim,
            decoded=decoded,
        )

    def too_long(self, folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
        """See `Family`."""
        return qwen_tokens.too_long(folder / "tokenizer", prompts, most)

    def encode(self, parts: Mapping[str, Any], prompt: str) -> dict[str, Tensor]:
        """The last hidden states of the filled template without the template's own leading
        tokens.
        """
        states = read_qwen(parts, QWEN_TEMPLATE.format(prompt)).hidden_states
        hidden = states[-1][0, QWEN_TEMPLATE_TOKENS:].float()
        refuse_too_long(prompt, len(hidden), QWEN_TEXT_LENGTH)
        return {"embeds": hidden}

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`."""
        return forward(
            transformer,
            given,
            timestep=given.rounded_sigmas(transformer.dtype),
            # Whether a mask is given must not depend on the batch: attention uses another kernel
            # with one.
            encoder_hidden_states_mask=given.conditioning.get("mask"),
            img_shapes=[[(1, given.grid.rows, given.grid.columns)]] * len(given.latents),
        )

    def activations(self, facts: Facts, step: Pass) -> Activations:
        """See `Family`."""
        config = cast(TransformerOfQwen, facts.config)
        text = step.text_tokens or facts.shared_text or QWEN_TEXT_LENGTH
        kind = JointBlocks(
            step,
            text,
            config.width,
            config.num_attention_heads,
            FeedForward.of_diffusers(("img_mlp", "txt_mlp"), config.width),
            native_norm=False,
            copies_output=False,
        )
        outside = Block(step)
        outside.given(("img_in",), "latents", step.tokens, config.in_channels)
        outside.factor("text, normed", text, config.joint_attention_dim)
        outside.linear(("txt_in",), "text", text, config.joint_attention_dim)
        return kind.activations([kind.block()] * config.num_layers, outside)

    def guide(self, positive: Tensor, negative: Tensor, scale: float | Tensor) -> Tensor:
        """Every token is rescaled to the norm of the positive one."""
        combined = super().guide(positive, negative, scale)
        norms = [velocity.norm(dim=-1, keepdim=True) for velocity in (positive, combined)]
        rescaled: Tensor = combined * (norms[0] / norms[1])
        return rescaled

    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """See `Family`."""
        return decode_qwen(vae, latents)


def _check_sizes(path: Path, config: TransformerOfQwen) -> None:
    require_axes(path, config.axes_dims_rope, config.attention_head_dim)
    produced = config.patch_size**2 * (config.out_channels or config.in_channels)
    if produced != config.in_channels:
        raise wrong(
            path,
            f"makes {produced} channels of patch_size {config.patch_size} and out_channels "
            f"{config.out_channels}, but has in_channels {config.in_channels}; they must be equal",
        )


def _check_fit(path: Path, config: TransformerOfQwen, shapes: dict[str, Shape]) -> None:
    expected = {
        "img_in.weight": (config.width, config.in_channels),
        "txt_in.weight": (config.width, config.joint_attention_dim),
    }
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            raise wrong(
                path,
                f"asks for {name} of shape {list(shape)}, but the weights have "
                f"{list(shapes[name])}",
            )


_LONGEST_EDGE = 4096
"""Tokens: the transformer has a table of positions of this length."""
_PACKED = 2
"""Latent pixels along the edge of a token, where there is a VAE."""


def _geometry(folder: CheckpointFolder, config: TransformerOfQwen) -> tuple[Geometry, int]:
    """What a token covers, and `Facts.decoded`."""
    if "vae" not in folder.parts:
        colours = config.out_channels or config.in_channels
        edge = config.patch_size
        return Geometry(edge, edge, colours * edge**2, longest_edge=_LONGEST_EDGE), 0
    channels, scale, decoded = inspect_qwen(folder)
    edge = _PACKED * scale
    return Geometry(_PACKED, edge, _PACKED**2 * channels, longest_edge=_LONGEST_EDGE), decoded


def _vocabulary(folder: CheckpointFolder, config: TransformerOfQwen) -> TokenVocabulary:
    """What a `TokenTextEncoder` reads, after a check that it fits."""
    path, shapes = folder.config_path("text_encoder"), folder.shapes("text_encoder")
    encoder = folder.config("text_encoder", _TextEncoder)
    if encoder.dim != config.joint_attention_dim:
        raise wrong(
            path,
            f"has dim {encoder.dim}, but the transformer's joint_attention_dim is "
            f"{config.joint_attention_dim}; they must be equal",
        )
    vocabulary = TokenVocabulary(encoder.words, encoder.characters, encoder.length, encoder.dim)
    expected = {
        "table": (vocabulary.size, vocabulary.dim),
        "positions": (vocabulary.length, vocabulary.dim),
    }
    for name, shape in expected.items():
        if shapes.get(name) != shape:
            raise wrong(
                path, f"asks for a tensor `{name}` of shape {list(shape)}, which the weights lack"
            )
    return vocabulary
