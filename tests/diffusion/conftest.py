"""A randomly initialised pixel-space model, small enough to denoise in milliseconds."""

from __future__ import annotations

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel

from spotlight.diffusion.images import PixelCodec
from spotlight.diffusion.qwen_image import QwenImageModel
from spotlight.diffusion.text import TokenTextEncoder, TokenVocabulary

HEIGHT, WIDTH = 16, 48


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


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


@pytest.fixture(scope="session")
def model() -> QwenImageModel:
    return QwenImageModel(
        tiny_transformer(),
        FlowMatchEulerDiscreteScheduler(shift=3.0),
        tiny_text_encoder(),
        PixelCodec(4, 1),
    )
