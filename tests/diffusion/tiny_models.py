"""Randomly initialised pixel-space parts, small enough to denoise in milliseconds."""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel

from spotlight.diffusion.families.qwen_image import QwenImage
from spotlight.diffusion.flow_model import FlowModel
from spotlight.diffusion.images import PixelCodec
from spotlight.diffusion.text import TokenTextEncoder, TokenVocabulary


def tiny_transformer(**changes: object) -> QwenImageTransformer2DModel:
    torch.manual_seed(0)
    config: dict[str, object] = {
        "patch_size": 4,
        "in_channels": 16,
        "out_channels": 1,
        "num_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 24,
        "axes_dims_rope": (4, 4, 8),
    }
    return QwenImageTransformer2DModel(**{**config, **changes}).eval()


def tiny_text_encoder() -> TokenTextEncoder:
    vocabulary = TokenVocabulary(("the", "number"), '"0123456789', length=8, dim=24)
    return TokenTextEncoder.create(vocabulary, torch.Generator().manual_seed(0))


def tiny_model(**changes: object) -> FlowModel:
    return FlowModel(
        QwenImage(),
        tiny_transformer(**changes),
        FlowMatchEulerDiscreteScheduler(shift=3.0),
        tiny_text_encoder(),
        PixelCodec(4, 1),
    )
