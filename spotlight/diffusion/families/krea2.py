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

import msgspec

from spotlight.diffusion.activations import Activations, Block, BlockBytes, Pass
from spotlight.diffusion.checkpoint_files import read_index, wrong
from spotlight.diffusion.families import qwen_tokens
from spotlight.diffusion.families.autoencoders import decode_qwen, inspect_qwen
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
from spotlight.diffusion.families.prompts import padded_with_mask, refuse_too_long
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


class _Text(msgspec.Struct, frozen=True):
    """What a Qwen3-VL says of its language model; defaults are those of transformers."""

    hidden_size: Size = 4096
    num_hidden_layers: Size = 32


class _TextEncoder(msgspec.Struct, frozen=True):
    """text_encoder/config.json."""

    text_config: _Text = _Text()


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
        text = folder.config("text_encoder", _TextEncoder).text_config
        _check_index(folder.path / "model_index.json")
        channels, edge, decoded = inspect_qwen(folder)
        packed = channels * _PACKED**2
        require_equal(path, "in_channels", config.in_channels, "four times the VAE's", packed)
        wanted = len(_LAYERS)
        require_equal(path, "num_text_layers", config.num_text_layers, "that of Krea 2", wanted)
        require_equal(
            path,
            "text_hidden_dim",
            config.text_hidden_dim,
            "hidden_size of text_encoder",
            text.hidden_size,
        )
        if text.num_hidden_layers < _LAYERS[-1]:
            raise wrong(
                folder.config_path("text_encoder"),
                f"has {text.num_hidden_layers} layers, but the transformer is given layer"
                f" {_LAYERS[-1]}; copy the text_encoder of this very checkpoint",
            )
        require_axes(path, config.axes_dims_rope, config.attention_head_dim)
        return Facts(
            Geometry(_PACKED, _PACKED * edge, packed),
            math.gcd(config.num_attention_heads, config.text_num_attention_heads),
            None,
            config,
            conditioning=_TOKENS * wanted * text.hidden_size,
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
        encoder = parts["text_encoder"]
        filled = parts["tokenizer"]([QWEN_TEMPLATE.format(prompt)], return_tensors="pt")
        filled = filled.to(encoder.device)
        output = encoder(
            input_ids=filled.input_ids,
            attention_mask=filled.attention_mask,
            output_hidden_states=True,
        )
        layers = [output.hidden_states[layer][0, QWEN_TEMPLATE_TOKENS:] for layer in _LAYERS]
        tokens, width = layers[0].shape
        refuse_too_long(prompt, tokens, _TOKENS)
        embeds = layers[0].new_zeros(tokens, len(layers), width).float()
        for number, layer in enumerate(layers):
            embeds[:, number] = layer
        return {"embeds": embeds}

    def padded(self, encoded: dict[str, Tensor], tokens: int) -> dict[str, Tensor]:
        """See `Family`; zeros, hidden by a mask."""
        return padded_with_mask(encoded, tokens)

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`."""
        dtype = transformer.dtype
        text = given.text("embeds", dtype)
        velocity: Tensor = transformer(
            hidden_states=given.latents.to(dtype),
            encoder_hidden_states=text,
            timestep=given.sigmas.to(dtype),
            position_ids=_places(given, text.shape[1]),
            encoder_attention_mask=given.conditioning["mask"],
            return_dict=False,
        )[0]
        return velocity

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
        enters = step.rows * joint * width * step.nbytes
        return Activations.of(
            step,
            [BlockBytes(enters, block.nbytes)] * config.num_layers,
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
    if index.get("is_distilled"):
        raise wrong(
            path, "is of the distilled checkpoint (is_distilled); give the base one to be trained"
        )
    if index.get("patch_size", _PACKED) != _PACKED:
        raise wrong(path, f"has a patch_size other than {_PACKED}")


def _places(given: ModelInput, text: int) -> Tensor:
    """(0, row, column) of each token, [text + T, 3]; text is at the origin."""
    latents, grid = given.latents, given.grid
    places = latents.new_zeros(text + grid.tokens, 3)
    image = places[text:].view(grid.rows, grid.columns, 3)
    image[..., 1] = latents.new_tensor(range(grid.rows))[:, None]
    image[..., 2] = latents.new_tensor(range(grid.columns))
    return places


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
    for each in ("before the function", "after the function", "raised"):
        block.keep(f"{name}{each}", tokens, inner)
    block.linear(_LINEAR[7:], f"{name}product", tokens, inner)
    if modulated:
        block.factor(f"{name}fed forward", tokens, width)


def _norm(block: Block, name: str, tokens: int, width: int, *, modulated: bool) -> None:
    block.keep_float32(name, tokens, width)
    if modulated:
        block.factor(f"{name}, normed", tokens, width)
