"""FLUX.2 klein: text of three layers of Qwen3, and blocks with gated feed-forward layers.

The transformer sees the padding of its text. Of each square of 2 x 2 latent pixels the bands have a
mean and a spread of their own, which the autoencoder knows. The shift of the sigmas depends on the
number of steps, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from spotlight.diffusion.activations import Activations, Pass
from spotlight.diffusion.checkpoint_files import wrong
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
    refuse_distilled,
    require_axes,
)
from spotlight.diffusion.families.joint_blocks import JOINT_ATTENTION, FeedForward, JointBlocks
from spotlight.diffusion.families.passes import forward, places
from spotlight.diffusion.families.prompts import Qwen3, read_chat, stacked
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
    num_layers: Size = 8
    num_single_layers: Size = 48
    attention_head_dim: Size = 128
    num_attention_heads: Size = 48
    joint_attention_dim: Size = 15360
    mlp_ratio: float = 3.0
    guidance_embeds: bool = True
    axes_dims_rope: tuple[int, int, int, int] = (32, 32, 32, 32)


class Flux2Klein(Family):
    """See `Family`."""

    name = "flux2-klein"
    pipeline = "Flux2KleinPipeline"
    transformer = "Flux2Transformer2DModel"
    vae = "AutoencoderKLFlux2"
    text_encoders: ClassVar[Mapping[str, str]] = {"text_encoder": "Qwen3ForCausalLM"}
    tokenizers = ("tokenizer",)
    lora_targets = (
        *JOINT_ATTENTION,
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

    def name_in_comfyui(self, module: str) -> str:
        """It knows diffusers' names, and cuts its own fused matrices."""
        return f"transformer.{module}"

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        path = folder.config_path("transformer")
        config = folder.config("transformer", _Transformer)
        text = folder.config("text_encoder", Qwen3)
        channels, edge, decoded = inspect_bands(folder)
        refuse_distilled(folder.path / INDEX)
        if config.guidance_embeds:
            raise wrong(path, "has guidance_embeds, which the pipeline gives no guidance to")
        config.require(path, "patch_size", "that of known models", 1)
        bands = channels * _PATCH**2
        config.require_channels(path, "four times the VAE's", bands)
        wanted = len(_LAYERS) * text.hidden_size
        config.require(
            path, "joint_attention_dim", "three times hidden_size of text_encoder", wanted
        )
        text.require_layer(folder.config_path("text_encoder"), _LAYERS[-1])
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
        return {"embeds": stacked([states[layer][0] for layer in _LAYERS]).flatten(1)}

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`."""
        return forward(
            transformer,
            given,
            timestep=given.rounded_sigmas(transformer.dtype),
            txt_ids=_text_places(given),
            img_ids=places(given, 4)[None],
        )

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
        single = [kind.fused_block()] * config.num_single_layers
        return kind.of_flux(
            config.num_layers, single, config.in_channels, config.joint_attention_dim
        )

    def decode(self, vae: Any, latents: Tensor) -> Tensor:
        """See `Family`."""
        return decode_bands(vae, latents)


def _text_places(given: ModelInput) -> Tensor:
    """Of each token of text (0, 0, 0, number), [1, tokens, 4]."""
    tokens = given.conditioning["embeds"].shape[1]
    found = given.latents.new_zeros(1, tokens, 4)
    found[..., 3] = found.new_tensor(range(tokens))
    return found
