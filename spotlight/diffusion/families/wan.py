"""Wan 2.x text-to-video: frames, and text that is attended to from the video.

Wan 2.2 A14B has two transformers of the same sizes, one after the other: the second one denoises
below a flow time that the checkpoint names.

A time of its own for every token (Wan 2.2 5B) is the same for all of them without a given picture,
so that one time for each sample is the same model.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from spotlight.diffusion.activations import FLOAT32, Activations, Block, BlockBytes, Pass
from spotlight.diffusion.checkpoint_files import read_json, wrong
from spotlight.diffusion.families.autoencoders import FramesVae, decode_frames
from spotlight.diffusion.families.base import (
    SECOND,
    CheckpointFolder,
    Facts,
    Family,
    ModelInput,
    Size,
    TransformerConfig,
    require_equal,
)
from spotlight.diffusion.families.prompts import T5, read_t5, too_long_for_t5
from spotlight.diffusion.geometry import Geometry, pack, unpack

if TYPE_CHECKING:
    from torch import Tensor

_T5_TOKENS = 512
_SOLVER = "UniPCMultistepScheduler"
_DECODED = 55
"""See `Facts.decoded`: in `base_dim`, with four frames at a time and what goes on to the next."""


class _Transformer(TransformerConfig, frozen=True, kw_only=True):
    """See `TransformerConfig`."""

    patch_size: tuple[Size, Size, Size] = (1, 2, 2)
    num_attention_heads: Size = 40
    attention_head_dim: Size = 128
    in_channels: Size = 16
    out_channels: Size | None = 16
    text_dim: Size = 4096
    ffn_dim: Size = 13824
    num_layers: Size = 40
    rope_max_seq_len: Size = 1024
    image_dim: int | None = None


class _Vae(FramesVae, frozen=True):
    """See `FramesVae`."""

    scale_factor_temporal: Size = 4
    scale_factor_spatial: Size = 8


class _Scheduler(msgspec.Struct, frozen=True):
    """scheduler/scheduler_config.json; defaults are those of diffusers."""

    use_flow_sigmas: bool = False


_AUTHORS = {
    **{
        f"{ours}.{part}": f"{theirs}.{called}"
        for ours, theirs in {"attn1": "self_attn", "attn2": "cross_attn"}.items()
        for part, called in {"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o"}.items()
    },
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
}
"""What the authors' own code calls the modules of a block that get adapters."""


class Wan(Family):
    """See `Family`."""

    name = "wan"
    pipeline = "WanPipeline"
    transformer = "WanTransformer3DModel"
    has_experts = True
    vae = "AutoencoderKLWan"
    schedulers = (_SOLVER, "FlowMatchEulerDiscreteScheduler")
    text_encoders: ClassVar[Mapping[str, str]] = {"text_encoder": "UMT5EncoderModel"}
    tokenizers = ("tokenizer",)
    lora_targets = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
    own_spacing = True
    most_tokens = _T5_TOKENS
    attention: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "blocks.*.attn1": ("hidden_states",),
        "blocks.*.attn2": (),
    }

    def name_in_comfyui(self, module: str) -> str | None:
        """As its authors called the modules of a block."""
        block, part = module.split(".")[:2], module.split(".")[2:]
        theirs = _AUTHORS.get(".".join(part))
        return f"diffusion_model.{'.'.join(block)}.{theirs}" if theirs else None

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        path = folder.config_path("transformer")
        config = folder.config("transformer", _Transformer)
        if SECOND in folder.parts:
            _require_same(folder.config_path(SECOND), folder.config(SECOND, _Transformer), config)
        vae, t5 = folder.config("vae", _Vae), folder.config("text_encoder", T5)
        if folder.parts["scheduler"] == _SOLVER:
            scheduler = folder.path / "scheduler" / "scheduler_config.json"
            if not read_json(scheduler, _Scheduler).use_flow_sigmas:
                raise wrong(scheduler, "has no use_flow_sigmas; give one for flow matching")
        if config.image_dim is not None:
            raise wrong(path, "asks for a picture to begin with; give a text-to-video checkpoint")
        frames, edge, width = config.patch_size
        if frames != 1 or edge != width:
            raise wrong(path, f"has patch_size {list(config.patch_size)}; it must be [1, n, n]")
        require_equal(path, "in_channels", config.in_channels, "z_dim of the VAE", vae.z_dim)
        produced = config.out_channels or config.in_channels
        require_equal(path, "out_channels", produced, "in_channels", config.in_channels)
        require_equal(path, "text_dim", config.text_dim, "d_model of text_encoder", t5.d_model)
        geometry = Geometry(
            edge,
            edge * vae.scale_factor_spatial,
            config.in_channels * edge**2,
            frames_per_token=vae.scale_factor_temporal,
            longest_edge=config.rope_max_seq_len,
        )
        return Facts(
            geometry,
            config.num_attention_heads,
            None,
            config,
            conditioning=_T5_TOKENS * t5.d_model,
            decoded=_DECODED * vae.base_dim,
        )

    def too_long(self, folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
        """See `Family`."""
        cleaned = [_cleaned(prompt) for prompt in prompts]
        return too_long_for_t5(folder / "tokenizer", cleaned, most)

    def encode(self, parts: Mapping[str, Any], prompt: str) -> dict[str, Tensor]:
        """The hidden states of UMT5, zero where padded."""
        return {"embeds": read_t5(parts, "", _cleaned(prompt), _T5_TOKENS, masked=True)}

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`; the transformer takes and gives frames of latents."""
        dtype, patch = transformer.dtype, transformer.config.patch_size[1]
        velocity: Tensor = transformer(
            hidden_states=unpack(given.latents, given.grid, patch).to(dtype),
            timestep=given.sigmas * 1000,
            encoder_hidden_states=given.text("embeds", dtype),
            return_dict=False,
        )[0]
        return pack(velocity, patch)

    def activations(self, facts: Facts, step: Pass) -> Activations:
        """See `Family`; norms and modulation compute in float32."""
        config = cast(_Transformer, facts.config)
        heads, width, tokens = config.num_attention_heads, config.width, step.tokens
        block = Block(step)
        _modulated(block, "attn1", tokens, width)
        layers = [f"attn1.{layer}" for layer in ("to_q", "to_k", "to_v")]
        block.linear(layers, "attn1, modulated", tokens, width)
        block.normed("attn1 query", tokens, width, native=True)
        block.normed("attn1 key", tokens, width, native=True)
        block.attention("attn1", tokens, width, heads, keys=tokens)
        block.linear(("attn1.to_out.0",), "attn1 output", tokens, width)
        block.factor("attn1, projected", tokens, width)
        block.keep_float32("attn2", tokens, width)
        block.linear(("attn2.to_q",), "attn2, normed", tokens, width)
        block.linear(("attn2.to_k", "attn2.to_v"), "text", _T5_TOKENS, width)
        block.forget("text")  # all blocks have the same
        block.normed("attn2 query", tokens, width, native=True)
        block.normed("attn2 key", _T5_TOKENS, width, native=True)
        block.attention("attn2", tokens, width, heads, keys=_T5_TOKENS)
        block.linear(("attn2.to_out.0",), "attn2 output", tokens, width)
        _modulated(block, "ffn", tokens, width)
        feed_forward = ("ffn.net.0.proj", "ffn.net.2")
        block.linear(feed_forward[:1], "ffn, modulated", tokens, width)
        block.mlp("ffn", feed_forward, tokens, config.ffn_dim)
        block.factor("ffn, fed forward", tokens, width, nbytes=FLOAT32)
        block.keep("modulation", 1, 8 * width, nbytes=FLOAT32)
        outside = Block(step)
        outside.linear(("proj_out",), "end, modulated", tokens, width)
        _modulated(outside, "end", tokens, width)
        outside.given(
            ("condition_embedder.text_embedder.linear_1",), "text", _T5_TOKENS, config.text_dim
        )
        for name in ("before the function", "after the function", "embedded"):
            outside.factor(f"text {name}", _T5_TOKENS, width)
        enters = step.rows * tokens * width * step.nbytes
        return Activations.of(
            step,
            [BlockBytes(enters, block.nbytes)] * config.num_layers,
            outside.nbytes,
            stream=tokens * width,
            widest=tokens * config.ffn_dim,
            layer=feed_forward[0],
        )

    def told(self, scheduler: Any, sigmas: Tensor) -> Tensor:
        """UniPC tells whole thousandths, cut off; a float32 just below one is meant to be it."""
        if "flow_shift" not in scheduler.config:
            return sigmas
        return (sigmas * 1000 + 1e-3).floor() / 1000

    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """See `Family`."""
        return decode_frames(vae, latents)


def _require_same(path: Path, second: _Transformer, first: _Transformer) -> None:
    """Raise the `CheckpointError` of a second transformer that is not made as the first."""
    for field, value in msgspec.structs.asdict(first).items():
        found = getattr(second, field)
        if found != value:
            raise wrong(
                path,
                f"has {field} {found}, but that of the first transformer is {value}; they must be"
                " equal",
            )


def _modulated(block: Block, name: str, tokens: int, width: int) -> None:
    """A norm without weights, and a modulation behind it, both in float32."""
    block.keep_float32(name, tokens, width)
    block.factor(f"{name}, normed", tokens, width, nbytes=FLOAT32)


def _cleaned(prompt: str) -> str:
    """As the pipeline cleans prompts, without the package ftfy, whose version, or absence, would
    change what a prompt means.
    """
    return " ".join(html.unescape(html.unescape(prompt)).split())
