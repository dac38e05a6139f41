"""Krea 2: one stream of text and latents, and text of twelve layers of Qwen3-VL that the
transformer itself fuses.

The pipeline adds `guidance_scale` times the difference to the positive velocity, so that
`sampler.guidance` is one more than its `guidance_scale`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from spotlight.diffusion.activations import Activations, Block, Pass
from spotlight.diffusion.checkpoint_files import read_index, wrong
from spotlight.diffusion.families import qwen_tokens
from spotlight.diffusion.families.autoencoders import decode_qwen, inspect_qwen
from spotlight.diffusion.families.base import (
    INDEX,
    CheckpointFolder,
    Facts,
    Family,
    ModelInput,
    Size,
    TransformerConfig,
    refuse_distilled,
    require_axes,
)
from spotlight.diffusion.families.passes import forward, places
from spotlight.diffusion.families.prompts import Qwen3Vl, read_qwen, refuse_too_long, stacked
from spotlight.diffusion.families.qwen_tokens import QWEN_TEMPLATE, QWEN_TEMPLATE_TOKENS
from spotlight.diffusion.geometry import Geometry

if TYPE_CHECKING:
    from torch import Tensor

_TOKENS = 512
_LAYERS = (2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35)
"""Whose hidden states the transformer is given of each token; 0 are the embeddings."""
_PACKED = 2
"""Latent pixels along the edge of a token; the transformer itself sees tokens only."""
_LINEAR = (
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_gate",
    "attn.to_out.0",
    "ff.gate",
    "ff.up",
    "ff.down",
)

_AUTHORS = {
    "attn.to_q": "attn.wq",
    "attn.to_k": "attn.wk",
    "attn.to_v": "attn.wv",
    "attn.to_gate": "attn.gate",
    "attn.to_out.0": "attn.wo",
    "ff.gate": "mlp.gate",
    "ff.up": "mlp.up",
    "ff.down": "mlp.down",
}
"""What the authors' own code calls the modules of a block that get adapters."""
_BLOCKS = re.compile(r"(transformer_blocks|text_fusion\.\w+_blocks)\.(\d+)\.(.+)", re.ASCII)


class _Transformer(TransformerConfig, frozen=True, kw_only=True):
    """See `TransformerConfig`."""

    in_channels: Size = 64
    num_layers: Size = 28
    attention_head_dim: Size = 128
    num_attention_heads: Size = 48
    intermediate_size: Size = 16384
    text_hidden_dim: Size = 2560
    num_text_layers: Size = 12
    text_num_attention_heads: Size = 20
    text_intermediate_size: Size = 6912
    num_layerwise_text_blocks: Size = 2
    num_refiner_text_blocks: Size = 2
    axes_dims_rope: tuple[int, int, int] = (32, 48, 48)


class Krea2(Family):
    """See `Family`."""

    name = "krea2"
    pipeline = "Krea2Pipeline"
    transformer = "Krea2Transformer2DModel"
    vae = "AutoencoderKLQwenImage"
    text_encoders: ClassVar[Mapping[str, str]] = {"text_encoder": "Qwen3VLModel"}
    tokenizers = ("tokenizer",)
    lora_targets = _LINEAR
    """All layers of its blocks, and of those that fuse the text."""
    most_tokens = _TOKENS
    text_lengths = (64, 128, 256, _TOKENS)
    attention: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "transformer_blocks.*.attn": ("encoder_hidden_states", "hidden_states"),
        "text_fusion.layerwise_blocks.*.attn": (),
        "text_fusion.refiner_blocks.*.attn": ("encoder_hidden_states",),
    }
    cuts: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "": {
            "encoder_hidden_states": 1,
            "hidden_states": 1,
            "encoder_attention_mask": 1,
            "position_ids": 0,
        }
    }
    joined: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "position_ids": ("encoder_hidden_states", "hidden_states")
    }
    gathers: ClassVar[Mapping[str, int]] = {"final_layer": 1}

    def name_in_comfyui(self, module: str) -> str | None:
        """As its authors called the modules of a block."""
        found = _BLOCKS.fullmatch(module)
        if found is None or found[3] not in _AUTHORS:
            return None
        of = found[1].replace("transformer_blocks", "blocks").replace("text_fusion", "txtfusion")
        return f"diffusion_model.{of}.{found[2]}.{_AUTHORS[found[3]]}"

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        path = folder.config_path("transformer")
        config = folder.config("transformer", _Transformer)
        text = folder.config("text_encoder", Qwen3Vl).text_config
        _check_index(folder.path / INDEX)
        channels, edge, decoded = inspect_qwen(folder)
        packed = channels * _PACKED**2
        config.require_channels(path, "four times the VAE's", packed)
        config.require(path, "num_text_layers", "that of Krea 2", len(_LAYERS))
        config.require(path, "text_hidden_dim", "hidden_size of text_encoder", text.hidden_size)
        text.require_layer(folder.config_path("text_encoder"), _LAYERS[-1])
        require_axes(path, config.axes_dims_rope, config.attention_head_dim)
        return Facts(
            Geometry(_PACKED, _PACKED * edge, packed),
            math.gcd(config.num_attention_heads, config.text_num_attention_heads),
            None,
            config,
            conditioning=_TOKENS * len(_LAYERS) * text.hidden_size,
            decoded=decoded,
        )

    def too_long(self, folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
        """See `Family`."""
        return qwen_tokens.too_long(folder / "tokenizer", prompts, most)

    def encode(self, parts: Mapping[str, Any], prompt: str) -> dict[str, Tensor]:
        """Hidden states [tokens, layers, D] of the filled template without the template's own
        leading tokens.

        The pipeline pads between prompt and template's end, and counts places without the padding:
        without any the numbers are the same.
        """
        states = read_qwen(parts, QWEN_TEMPLATE.format(prompt)).hidden_states
        embeds = stacked([states[layer][0, QWEN_TEMPLATE_TOKENS:] for layer in _LAYERS])
        refuse_too_long(prompt, len(embeds), _TOKENS)
        return {"embeds": embeds}

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`."""
        return forward(
            transformer,
            given,
            timestep=given.sigmas.to(transformer.dtype),
            position_ids=_all_places(given),
            encoder_attention_mask=given.conditioning["mask"],
        )

    def activations(self, facts: Facts, step: Pass) -> Activations:
        """See `Family`; text is fused outside the blocks that are computed twice."""
        config = cast(_Transformer, facts.config)
        heads, width, text = config.num_attention_heads, config.width, step.text_tokens or _TOKENS
        joint, inner = text + step.tokens, config.intermediate_size
        block = Block(step)
        _block(block, "", joint, width, heads, inner, modulated=True)
        outside = Block(step)
        _fuse(outside, config, text)
        outside.keep_float32("fused", text, config.text_hidden_dim)
        outside.linear(("txt_in.linear_1",), "fused, normed", text, config.text_hidden_dim)
        outside.keep("text before the function", text, width)
        outside.linear(("txt_in.linear_2",), "text after the function", text, width)
        outside.given(("img_in",), "latents", step.tokens, config.in_channels)
        outside.keep_float32("end", step.tokens, width)
        outside.factor("end, normed", step.tokens, width)
        outside.linear(("final_layer.linear",), "end, modulated", step.tokens, width)
        return Activations.of(
            step,
            [block.entered_by(joint, width)] * config.num_layers,
            outside.nbytes,
            stream=joint * width,
            widest=joint * inner,
            layer="ff.gate",
        )

    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """See `Family`."""
        return decode_qwen(vae, latents)


def _check_index(path: Path) -> None:
    """What model_index.json says of the pipeline besides its parts; raises `CheckpointError`."""
    index = read_index(path)
    layers = index.get("text_encoder_select_layers")
    if layers is not None and layers != list(_LAYERS):
        raise wrong(path, f"has text_encoder_select_layers other than {list(_LAYERS)}")
    refuse_distilled(path)
    if index.get("patch_size", _PACKED) != _PACKED:
        raise wrong(path, f"has a patch_size other than {_PACKED}")


def _all_places(given: ModelInput) -> Tensor:
    """(0, row, column) of each token, [text + T, 3]; text is at the origin."""
    text = given.conditioning["embeds"].shape[1]
    found = given.latents.new_zeros(text + given.grid.tokens, 3)
    found[text:] = places(given, 3)
    return found


def _fuse(block: Block, config: _Transformer, text: int) -> None:
    """The blocks that fuse the layers of each token, and then the tokens."""
    width, heads = config.text_hidden_dim, config.text_num_attention_heads
    inner, wide = config.text_intermediate_size, text * config.num_text_layers
    for number in range(config.num_layerwise_text_blocks):
        _block(block, f"layerwise {number} ", wide, width, heads, inner)
    block.linear(("projector",), "layers of tokens", wide, width)
    for number in range(config.num_refiner_text_blocks):
        _block(block, f"refiner {number} ", text, width, heads, inner)


def _block(
    block: Block,
    name: str,
    tokens: int,
    width: int,
    heads: int,
    inner: int,
    *,
    modulated: bool = False,
) -> None:
    """What one block keeps; its norms compute in float32, and attention has a gate."""
    before, between = f"{name}before", f"{name}between"
    _norm(block, before, tokens, width, modulated=modulated)
    block.linear(_LINEAR[:4], f"{before}, ready", tokens, width)
    for each in ("queries", "keys"):
        block.normed(f"{name}{each}", tokens, width, native=True)
    block.attention(f"{name}attention", tokens, width, heads, keys=tokens)
    block.keep(f"{name}opened gate", tokens, width)
    block.linear(_LINEAR[4:5], f"{name}gated", tokens, width)
    if modulated:
        block.factor(f"{name}attended", tokens, width)
    _norm(block, between, tokens, width, modulated=modulated)
    block.linear(_LINEAR[5:7], f"{between}, ready", tokens, width)
    block.gated(name, _LINEAR[7:], tokens, inner)
    if modulated:
        block.factor(f"{name}fed forward", tokens, width)


def _norm(block: Block, name: str, tokens: int, width: int, *, modulated: bool) -> None:
    block.keep_float32(name, tokens, width)
    if modulated:
        block.factor(f"{name}, normed", tokens, width)
