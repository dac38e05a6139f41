"""Qwen-Image 2.1: text of Qwen3-VL and latents in one stream, where text does not see the image.

Text is the same at every noise level, and every sample is computed by itself: where the image
stands depends on how many tokens its prompt has. The autoencoder draws with transparency, and is
shown on white.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import msgspec

from spotlight.diffusion.activations import FLOAT32, Activations, Block, Pass
from spotlight.diffusion.checkpoint_files import read_index, wrong
from spotlight.diffusion.families import qwen_tokens
from spotlight.diffusion.families.autoencoders import FramesVae, decode_frames
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
from spotlight.diffusion.families.passes import forward
from spotlight.diffusion.families.prompts import Qwen3Vl, refuse_too_long
from spotlight.diffusion.families.qwen_tokens import QWEN_CHAT
from spotlight.diffusion.geometry import Geometry

if TYPE_CHECKING:
    from torch import Tensor

_SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
"""What stands before a prompt, and is not given to the transformer."""
_EDGE = 16
"""Pixels along the edge of a token; the pipeline knows no other."""
_TOGETHER = 2
"""Tokens along the edge of a square that is one place in the text."""
_RGBA = 4
_DECODED = 22
"""See `Facts.decoded`: in the width of the decoder."""
_LONGEST_EDGE = 2048
"""Tokens: the transformer has a table of positions of half this length on both sides of zero."""


class _Transformer(TransformerConfig, frozen=True, kw_only=True):
    """See `TransformerConfig`."""

    patch_size: Size = 1
    in_channels: Size = 64
    out_channels: Size | None = 64
    num_layers: Size = 32
    attention_head_dim: Size = 128
    num_attention_heads: Size = 32
    context_in_dim: Size = 4096
    mlp_ratio: Size = 3
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)
    causal_condition: bool = True


class _Vae(FramesVae, frozen=True):
    """See `FramesVae`."""

    z_dim: Size = 64
    decoder_base_dim: Size | None = 144
    out_channels: Size = 4
    patch_size: Size | None = None
    temperal_downsample: Annotated[tuple[bool, ...], msgspec.Meta(max_length=8)] = (
        False,
        True,
        True,
        True,
    )


class QwenImage21(Family):
    """See `Family`."""

    name = "qwen-image-2.1"
    pipeline = "QwenImage21Pipeline"
    transformer = "QwenImage21Transformer2DModel"
    vae = "AutoencoderKLQwenImage21"
    text_encoders: ClassVar[Mapping[str, str]] = {"text_encoder": "Qwen3VLForConditionalGeneration"}
    tokenizers = ("processor",)
    one_by_one = True
    lora_targets = (
        "attn.to_q",
        "attn.to_k",
        "attn.to_v",
        "attn.to_out.0",
        "img_mlp.proj",
        "img_mlp.gate_layer",
        "img_mlp.out",
    )
    most_tokens = QWEN_CHAT.longest
    text_lengths = (64, 128, 256, QWEN_CHAT.longest)
    attention: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "transformer_blocks.*.attn": ("hidden_states",)
    }
    leading = "encoder_hidden_states"
    cuts: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "transformer_blocks.0": {"hidden_states": 1},
        "transformer_blocks.*": {"rotary_emb": 0, "target_token_mask": 0},
        "norm_out": {"target_token_mask": 0},
    }
    gathers: ClassVar[Mapping[str, int]] = {"proj_out": 1}

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        path, index = folder.config_path("transformer"), folder.path / INDEX
        config = folder.config("transformer", _Transformer)
        vae = folder.config("vae", _Vae)
        text = folder.config("text_encoder", Qwen3Vl).text_config
        if read_index(index).get("sample_sigmas") is not None:
            raise wrong(
                index,
                "names the sample_sigmas of a model that was distilled to these steps; give the one"
                " that it was distilled from",
            )
        config.require(path, "patch_size", "that of known models", 1)
        config.require_channels(path, "z_dim of the VAE", vae.z_dim)
        config.require(path, "context_in_dim", "hidden_size of text_encoder", text.hidden_size)
        require_axes(path, config.axes_dims_rope, config.attention_head_dim)
        edge = 2 ** len(vae.temperal_downsample) * (vae.patch_size or 1)
        vae_path = folder.config_path("vae")
        require_equal(vae_path, "pixels along a latent's edge", edge, "the pipeline's", _EDGE)
        if vae.out_channels != _RGBA * (vae.patch_size or 1) ** 2:
            raise wrong(vae_path, f"makes {vae.out_channels} colours; give one that makes {_RGBA}")
        return Facts(
            Geometry(
                1, _EDGE, config.in_channels, tokens_together=_TOGETHER, longest_edge=_LONGEST_EDGE
            ),
            config.num_attention_heads,
            None,
            config,
            conditioning=QWEN_CHAT.longest * config.context_in_dim,
            decoded=_DECODED * (vae.decoder_base_dim or vae.base_dim),
        )

    def too_long(self, folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
        """See `Family`."""
        return qwen_tokens.too_long(folder / "processor", prompts, most, QWEN_CHAT)

    def encode(self, parts: Mapping[str, Any], prompt: str) -> dict[str, Tensor]:
        """What the last layer gives, before the norm behind it, without the system's tokens."""
        encoder, tokenizer = parts["text_encoder"], parts["processor"]
        filled = tokenizer([_SYSTEM + QWEN_CHAT.text.format(prompt or " ")], return_tensors="pt")
        filled = filled.to(encoder.device)
        seen: list[Tensor] = []
        hook = encoder.model.language_model.norm.register_forward_pre_hook(
            lambda _, given: seen.append(given[0])
        )
        try:
            encoder.model(input_ids=filled.input_ids, attention_mask=filled.attention_mask)
        finally:
            hook.remove()
        hidden = seen[0][0, len(tokenizer(_SYSTEM).input_ids) :].float()
        refuse_too_long(prompt, len(hidden), QWEN_CHAT.longest)
        return {"embeds": hidden}

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`; the image stands behind its text, four tokens at each place."""
        grid, text = given.grid, given.conditioning["embeds"]
        places = text.new_zeros(1, text.shape[1] + grid.tokens // _TOGETHER**2).bool()
        places[:, text.shape[1] :] = True
        velocity = forward(
            transformer,
            given,
            timestep=given.rounded_sigmas(transformer.dtype),
            img_shapes=[[(1, grid.rows, grid.columns)]],
            img_mask=places,
        )
        return velocity[:, -grid.tokens :]

    def activations(self, facts: Facts, step: Pass) -> Activations:
        """See `Family`."""
        config = cast(_Transformer, facts.config)
        text, width = step.text_tokens or QWEN_CHAT.longest, config.width
        joint, inner = step.tokens + text, config.mlp_ratio * width
        block = Block(step)
        _modulated(block, "before", joint, width)
        layers = ("attn.to_q", "attn.to_k", "attn.to_v")
        block.linear(layers, "before, modulated", joint, width)
        block.normed("queries", joint, width, native=False)
        block.normed("keys", joint, width, native=False)
        block.attention("joint", joint, width, config.num_attention_heads, keys=joint)
        block.linear(("attn.to_out.0",), "attended", joint, width)
        block.factor("projected", joint, width)
        _modulated(block, "between", joint, width)
        block.linear(("img_mlp.proj", "img_mlp.gate_layer"), "between, modulated", joint, width)
        block.gated("", ("img_mlp.out",), joint, inner)
        block.factor("fed forward", joint, width)
        outside = Block(step)
        outside.given((), "latents", step.tokens, config.in_channels)
        outside.factor("text, normed", text, config.context_in_dim, nbytes=FLOAT32)
        outside.linear(("txt_in.in_layer",), "text, scaled", text, config.context_in_dim)
        outside.factor("text", text, 3 * width)
        outside.keep("end", joint, width)
        outside.keep("end, scale", joint, width)
        outside.linear(("proj_out",), "end, modulated", joint, width)
        return Activations.of(
            step,
            [block.entered_by(joint, width)] * config.num_layers,
            outside.nbytes,
            stream=joint * width,
            widest=joint * inner,
            layer="img_mlp.proj",
        )

    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """See `Family`; what is transparent is white."""
        image = decode_frames(vae, latents)[:, :, :1].clamp(-1, 1)
        colours, opaque = image[:, :3], (image[:, 3:] + 1) / 2
        return colours * opaque + (1 - opaque)


def _modulated(block: Block, name: str, tokens: int, width: int) -> None:
    """A norm without weights, and a scale and a gate behind it, of every token."""
    block.keep(name, tokens, width)
    block.factor(f"{name}, normed", tokens, width)
    block.keep(f"{name}, scale", tokens, width)
    block.keep(f"{name}, gate", tokens, width)
