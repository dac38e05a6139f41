"""Z-Image: text of Qwen3 behind the latents, in one stream.

Every sample is computed by itself: the transformer pads text and latents to multiples of 32 with
tokens that it learned, and where the image stands depends on how many tokens its prompt has. The
pipeline adds `guidance_scale` times the difference to the positive velocity, so that
`sampler.guidance` is one more than its `guidance_scale`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from spotlight.diffusion.activations import Activations, Block, BlockBytes, Pass
from spotlight.diffusion.checkpoint_files import wrong
from spotlight.diffusion.families import qwen_tokens
from spotlight.diffusion.families.autoencoders import decode_kl, inspect_kl
from spotlight.diffusion.families.base import (
    CheckpointFolder,
    Facts,
    Family,
    ModelInput,
    Size,
    require_axes,
    require_equal,
)
from spotlight.diffusion.families.prompts import Qwen3, read_chat
from spotlight.diffusion.families.qwen_tokens import QWEN_CHAT
from spotlight.diffusion.geometry import Geometry, pack, unpack

if TYPE_CHECKING:
    from torch import Tensor

_PATCH = 2
"""Latent pixels along the edge of a token; the pipeline asks for no other."""
_MULTIPLE = 32
"""The transformer pads text and latents to multiples of so many tokens."""


class _Transformer(msgspec.Struct, frozen=True):
    """transformer/config.json; defaults are those of diffusers."""

    all_patch_size: tuple[Size, ...] = (2,)
    all_f_patch_size: tuple[Size, ...] = (1,)
    in_channels: Size = 16
    dim: Size = 3840
    n_layers: Size = 30
    n_refiner_layers: Size = 2
    n_heads: Size = 30
    cap_feat_dim: Size = 2560
    siglip_feat_dim: int | None = None
    axes_dims: tuple[int, int, int] = (32, 48, 48)
    axes_lens: tuple[Size, Size, Size] = (1024, 512, 512)


class ZImage(Family):
    """See `Family`."""

    name = "z-image"
    pipeline = "ZImagePipeline"
    transformer = "ZImageTransformer2DModel"
    vae = "AutoencoderKL"
    text_encoders: ClassVar[Mapping[str, str]] = {"text_encoder": "Qwen3Model"}
    tokenizers = ("tokenizer",)
    one_by_one = True
    lora_targets = (
        "attention.to_q",
        "attention.to_k",
        "attention.to_v",
        "attention.to_out.0",
        "feed_forward.w1",
        "feed_forward.w2",
        "feed_forward.w3",
    )
    most_tokens = QWEN_CHAT.longest
    text_lengths = (64, 128, 256, QWEN_CHAT.longest)
    attention: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "layers.*.attention": ("x",),
        "noise_refiner.*.attention": (),
        "context_refiner.*.attention": (),
    }
    image = "x"
    heads = "n_heads"
    cuts: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "layers.0": {"x": 1},
        "layers.*": {"freqs_cis": 1},
    }
    gathers: ClassVar[Mapping[str, int]] = {"all_final_layer.2-1": 1}

    def name_in_comfyui(self, module: str) -> str:
        """It knows diffusers' names, and cuts its own fused matrices."""
        return f"diffusion_model.{module}"

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        path = folder.config_path("transformer")
        config = folder.config("transformer", _Transformer)
        text = folder.config("text_encoder", Qwen3)
        channels, edge, decoded = inspect_kl(folder)
        if _PATCH not in config.all_patch_size or 1 not in config.all_f_patch_size:
            raise wrong(path, f"has no patches of {_PATCH} x {_PATCH} latent pixels in one frame")
        if config.siglip_feat_dim is not None:
            raise wrong(path, "asks for pictures to begin with; give a text-to-image checkpoint")
        require_equal(path, "in_channels", config.in_channels, "the VAE's", channels)
        require_equal(
            path,
            "cap_feat_dim",
            config.cap_feat_dim,
            "hidden_size of text_encoder",
            text.hidden_size,
        )
        if config.dim % config.n_heads:
            raise wrong(path, f"has dim {config.dim}, which its {config.n_heads} heads do not cut")
        require_axes(path, config.axes_dims, config.dim // config.n_heads)
        return Facts(
            Geometry(
                _PATCH,
                _PATCH * edge,
                channels * _PATCH**2,
                longest_edge=min(config.axes_lens[1:]),
            ),
            config.n_heads,
            None,
            config,
            conditioning=QWEN_CHAT.longest * config.cap_feat_dim,
            decoded=decoded,
        )

    def too_long(self, folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
        """See `Family`."""
        return qwen_tokens.too_long(folder / "tokenizer", prompts, most, QWEN_CHAT)

    def encode(self, parts: Mapping[str, Any], prompt: str) -> dict[str, Tensor]:
        """The hidden states before the last layer."""
        hidden = read_chat(parts, prompt, think=True).hidden_states[-2][0].float()
        return {"embeds": hidden}

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`; the transformer is told how much is image, and gives image minus noise."""
        latents = unpack(given.latents, given.grid, _PATCH).to(transformer.dtype)
        text = given.text("embeds", transformer.dtype)
        output = transformer(list(latents), 1 - given.sigmas, list(text), return_dict=False)
        return pack(-output[0][0][None], _PATCH)

    def activations(self, facts: Facts, step: Pass) -> Activations:
        """See `Family`."""
        config = cast(_Transformer, facts.config)
        text = _whole(step.text_tokens or QWEN_CHAT.longest)
        tokens, width = _whole(step.tokens), config.dim
        joint = tokens + text
        refiners = [
            *[_block(step, config, tokens, modulated=True)] * config.n_refiner_layers,
            *[_block(step, config, text, modulated=False)] * config.n_refiner_layers,
        ]
        blocks = [_block(step, config, joint, modulated=True)] * config.n_layers
        outside = Block(step)
        outside.given(("all_x_embedder.2-1",), "latents", tokens, facts.geometry.channels)
        outside.factor("text", text, config.cap_feat_dim)
        outside.linear(("cap_embedder.1",), "text, normed", text, config.cap_feat_dim)
        outside.keep("end", joint, width)
        outside.factor("end, normed", joint, width)
        outside.linear(("all_final_layer.2-1.linear",), "end, modulated", joint, width)
        return Activations.of(
            step,
            [*refiners, *blocks],
            outside.nbytes,
            stream=joint * width,
            widest=joint * _inner(config),
            layer="feed_forward.w1",
        )

    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """See `Family`."""
        return decode_kl(vae, latents)


def _whole(tokens: int) -> int:
    """Tokens with those that the transformer pads them by."""
    return -(-tokens // _MULTIPLE) * _MULTIPLE


def _inner(config: _Transformer) -> int:
    """Numbers in the middle of a feed-forward layer."""
    return int(config.dim / 3 * 8)


def _block(step: Pass, config: _Transformer, tokens: int, *, modulated: bool) -> BlockBytes:
    block, width, inner = Block(step), config.dim, _inner(config)
    for name, layers in (
        ("before", ("attention.to_q", "attention.to_k", "attention.to_v")),
        ("between", ("feed_forward.w1", "feed_forward.w3")),
    ):
        block.normed(name, tokens, width, native=False)
        block.linear(layers, f"{name}, modulated", tokens, width)
    for name in ("queries", "keys"):
        block.normed(name, tokens, width, native=False)
    block.attention("joint", tokens, width, config.n_heads, keys=tokens)
    block.linear(("attention.to_out.0",), "attended", tokens, width)
    block.gated("", ("feed_forward.w2",), tokens, inner)
    for name in ("projected", "fed forward"):
        block.normed(name, tokens, width, native=False)
        if modulated:
            block.factor(f"{name}, scaled", tokens, width)
    return block.entered_by(tokens, width)
