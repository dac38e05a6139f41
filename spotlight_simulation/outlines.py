"""Outlines of published checkpoints: their configurations, and weights without content.

    python -m spotlight_simulation.outlines qwen-image /tmp/qwen-image

An outline has the architecture and the number of weights of the real one, so that a job can be
planned for it, and takes no space: its files are sparse. Nobody can load it.

The configurations are those that the checkpoints' own files and the classes of diffusers have. Of
Qwen-Image 2.1 and Z-Image they were read in public code that repeats them, in Z-Image's case with
the bytes of its text encoder; the numbers of weights are those of the classes with these
configurations (Qwen3-VL 8B and Qwen3 4B read the text).
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor

_HEADS_OF_FLUX: dict[str, Any] = {
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "axes_dims_rope": [16, 56, 56],
}
_T5 = ("T5EncoderModel", {"d_model": 4096}, 4_762_310_656)
_CLIP_L = {"hidden_size": 768, "projection_dim": 768}
_IMAGE_VAE = (
    "AutoencoderKL",
    {"latent_channels": 16, "block_out_channels": [128, 256, 512, 512]},
    83_819_683,
)
_QWEN3_4B = {"hidden_size": 2560, "num_hidden_layers": 36}
_QWEN3_4B_SIZE = 4_022_468_096
_VIDEO_VAE_SIZE = 126_892_531
_QWEN_VAE = ("AutoencoderKLQwenImage", {"base_dim": 96, "z_dim": 16}, _VIDEO_VAE_SIZE)


_TEXT_WIDTHS = ("joint_attention_dim", "text_dim", "context_in_dim", "cap_feat_dim")
"""What transformers call the width of the text that they are given, where it is of one layer."""


@dataclass(frozen=True)
class Outline:
    """A published checkpoint."""

    name: str
    """The name on the hub."""
    pipeline: str
    transformer: str
    config: dict[str, Any]
    """The configuration of the transformer."""
    parts: dict[str, tuple[str, dict[str, Any], int]]
    """The class, the configuration and the parameters of text encoders and VAE."""
    tokenizers: tuple[str, ...]
    text_tokens: int
    masks_text: bool = False
    scheduler: str = "FlowMatchEulerDiscreteScheduler"
    scheduler_config: dict[str, Any] = field(default_factory=dict)


OUTLINES = {
    "qwen-image": Outline(
        "Qwen/Qwen-Image",
        "QwenImagePipeline",
        "QwenImageTransformer2DModel",
        {
            **_HEADS_OF_FLUX,
            "patch_size": 2,
            "in_channels": 64,
            "out_channels": 16,
            "num_layers": 60,
            "joint_attention_dim": 3584,
        },
        {
            "text_encoder": ("Qwen2_5_VLForConditionalGeneration", {}, 8_292_166_656),
            "vae": _QWEN_VAE,
        },
        ("tokenizer",),
        text_tokens=256,
        masks_text=True,
    ),
    "sd3.5-medium": Outline(
        "stabilityai/stable-diffusion-3.5-medium",
        "StableDiffusion3Pipeline",
        "SD3Transformer2DModel",
        {
            "sample_size": 128,
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 24,
            "attention_head_dim": 64,
            "num_attention_heads": 24,
            "joint_attention_dim": 4096,
            "caption_projection_dim": 1536,
            "pooled_projection_dim": 2048,
            "pos_embed_max_size": 384,
            "dual_attention_layers": list(range(13)),
            "qk_norm": "rms_norm",
        },
        {
            "text_encoder": ("CLIPTextModelWithProjection", _CLIP_L, 123_650_304),
            "text_encoder_2": (
                "CLIPTextModelWithProjection",
                {"hidden_size": 1280, "projection_dim": 1280},
                694_659_840,
            ),
            "text_encoder_3": _T5,
            "vae": _IMAGE_VAE,
        },
        ("tokenizer", "tokenizer_2", "tokenizer_3"),
        text_tokens=77 + 256,
    ),
    "flux.1-dev": Outline(
        "black-forest-labs/FLUX.1-dev",
        "FluxPipeline",
        "FluxTransformer2DModel",
        {
            **_HEADS_OF_FLUX,
            "patch_size": 1,
            "in_channels": 64,
            "num_layers": 19,
            "num_single_layers": 38,
            "joint_attention_dim": 4096,
            "pooled_projection_dim": 768,
            "guidance_embeds": True,
        },
        {
            "text_encoder": ("CLIPTextModel", _CLIP_L, 123_060_480),
            "text_encoder_2": _T5,
            "vae": _IMAGE_VAE,
        },
        ("tokenizer", "tokenizer_2"),
        text_tokens=512,
    ),
    "flux.2-klein-base-4b": Outline(
        "black-forest-labs/FLUX.2-klein-base-4B",
        "Flux2KleinPipeline",
        "Flux2Transformer2DModel",
        {
            "in_channels": 128,
            "num_layers": 5,
            "num_single_layers": 20,
            "attention_head_dim": 128,
            "num_attention_heads": 24,
            "joint_attention_dim": 7680,
            "axes_dims_rope": [32, 32, 32, 32],
            "guidance_embeds": False,
        },
        {
            "text_encoder": ("Qwen3ForCausalLM", _QWEN3_4B, _QWEN3_4B_SIZE),
            "vae": ("AutoencoderKLFlux2", {}, 84_046_115),
        },
        ("tokenizer",),
        text_tokens=512,
    ),
    "qwen-image-2.1": Outline(
        "Qwen/Qwen-Image-2.1",
        "QwenImage21Pipeline",
        "QwenImage21Transformer2DModel",
        {
            "patch_size": 1,
            "in_channels": 64,
            "out_channels": 64,
            "num_layers": 32,
            "attention_head_dim": 128,
            "num_attention_heads": 32,
            "context_in_dim": 4096,
            "mlp_ratio": 3,
            "axes_dims_rope": [16, 56, 56],
        },
        {
            "text_encoder": (
                "Qwen3VLForConditionalGeneration",
                {"text_config": {"hidden_size": 4096, "num_hidden_layers": 36}},
                8_767_123_696,
            ),
            "vae": ("AutoencoderKLQwenImage21", {}, 337_740_404),
        },
        ("processor",),
        text_tokens=512,
        masks_text=True,
    ),
    "z-image": Outline(
        "Tongyi-MAI/Z-Image",
        "ZImagePipeline",
        "ZImageTransformer2DModel",
        {
            "all_patch_size": [2],
            "all_f_patch_size": [1],
            "in_channels": 16,
            "dim": 3840,
            "n_layers": 30,
            "n_refiner_layers": 2,
            "n_heads": 30,
            "n_kv_heads": 30,
            "cap_feat_dim": 2560,
            "axes_dims": [32, 48, 48],
            "axes_lens": [1536, 512, 512],
        },
        {
            "text_encoder": (
                "Qwen3Model",
                {"architectures": ["Qwen3ForCausalLM"], **_QWEN3_4B},
                _QWEN3_4B_SIZE,
            ),
            "vae": _IMAGE_VAE,
        },
        ("tokenizer",),
        text_tokens=512,
        masks_text=True,
    ),
    "wan2.1-t2v-1.3b": Outline(
        "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        "WanPipeline",
        "WanTransformer3DModel",
        {
            "patch_size": [1, 2, 2],
            "num_attention_heads": 12,
            "attention_head_dim": 128,
            "in_channels": 16,
            "out_channels": 16,
            "text_dim": 4096,
            "freq_dim": 256,
            "ffn_dim": 8960,
            "num_layers": 30,
            "cross_attn_norm": True,
            "qk_norm": "rms_norm_across_heads",
            "eps": 1e-6,
            "rope_max_seq_len": 1024,
        },
        {
            "text_encoder": ("UMT5EncoderModel", {"d_model": 4096}, 5_680_910_336),
            "vae": ("AutoencoderKLWan", {"base_dim": 96, "z_dim": 16}, _VIDEO_VAE_SIZE),
        },
        ("tokenizer",),
        text_tokens=512,
        scheduler="UniPCMultistepScheduler",
        scheduler_config={"use_flow_sigmas": True, "flow_shift": 3.0},
    ),
    "krea-2": Outline(
        "krea/Krea-2",
        "Krea2Pipeline",
        "Krea2Transformer2DModel",
        {
            "in_channels": 64,
            "num_layers": 28,
            "attention_head_dim": 128,
            "num_attention_heads": 48,
            "num_key_value_heads": 12,
            "intermediate_size": 16384,
            "timestep_embed_dim": 256,
            "text_hidden_dim": 2560,
            "num_text_layers": 12,
            "text_num_attention_heads": 20,
            "text_num_key_value_heads": 20,
            "text_intermediate_size": 6912,
            "num_layerwise_text_blocks": 2,
            "num_refiner_text_blocks": 2,
            "axes_dims_rope": [32, 48, 48],
        },
        {
            "text_encoder": (
                "Qwen3VLModel",
                {"text_config": {"hidden_size": 2560, "num_hidden_layers": 36}},
                4_437_815_808,
            ),
            "vae": _QWEN_VAE,
        },
        ("tokenizer",),
        text_tokens=512,
        masks_text=True,
    ),
}
"""The outlines by a short name. What is not here is as the classes of diffusers and transformers
have it."""


def make_transformer(outline: Outline, *, device: str = "meta", **changes: Any) -> Any:
    """The transformer in float32, by default on the meta device: shapes without content. `changes`
    are made to its configuration.
    """
    with torch.device(device):
        return getattr(diffusers, outline.transformer)(**{**outline.config, **changes}).eval()


def make_conditioning(outline: Outline, rows: int, device: str) -> dict[str, Tensor]:
    """What the transformer is given of so many prompts: zeros."""
    config, tokens = outline.config, outline.text_tokens
    widths = [config[name] for name in _TEXT_WIDTHS if name in config]
    shape = (*widths,) if widths else (config["num_text_layers"], config["text_hidden_dim"])
    tensors = {"embeds": torch.zeros(rows, tokens, *shape, device=device)}
    if "pooled_projection_dim" in config:
        pooled = torch.zeros(rows, config["pooled_projection_dim"], device=device)
        tensors["pooled"] = pooled
    if outline.masks_text:
        tensors["mask"] = torch.ones(rows, tokens, dtype=torch.bool, device=device)
    return tensors


def write_outline(name: str, folder: Path, **changes: Any) -> None:
    """Write the outline of a key of `OUTLINES`, with `changes` to the configuration of its
    transformer; raises `KeyError` for another name.
    """
    outline = OUTLINES[name]
    scheduler = ("diffusers", outline.scheduler)
    index: dict[str, Any] = {"_class_name": outline.pipeline, "scheduler": scheduler}
    _write_json(folder / "scheduler" / "scheduler_config.json", outline.scheduler_config)
    index["transformer"] = ("diffusers", outline.transformer)
    _write_json(folder / "transformer" / "config.json", {**outline.config, **changes})
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in make_transformer(outline, **changes).state_dict().items()
    }
    _write_weights(folder / "transformer" / "diffusion_pytorch_model.safetensors", shapes)
    for part, (kind, config, size) in outline.parts.items():
        index[part] = ("diffusers" if part == "vae" else "transformers", kind)
        _write_json(folder / part / "config.json", config)
        stem = "diffusion_pytorch_model" if part == "vae" else "model"
        _write_weights(folder / part / f"{stem}.safetensors", {"all": (size,)})
    for part in outline.tokenizers:
        index[part] = ("transformers", "PreTrainedTokenizerFast")
        (folder / part).mkdir()
    _write_json(folder / "model_index.json", index)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def _write_weights(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A header that is true, and a hole behind it."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (end, end + size)}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


if __name__ == "__main__":
    write_outline(sys.argv[1], Path(sys.argv[2]))
