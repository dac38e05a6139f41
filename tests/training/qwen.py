"""A tiny, randomly initialised Qwen-Image transformer behind the seam."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel

from spotlight.diffusion.checkpoints import add_adapters
from spotlight.diffusion.families.qwen_image import QwenImage
from spotlight.diffusion.flow_model import FlowModel
from spotlight.diffusion.images import PixelCodec
from spotlight.diffusion.text import TokenTextEncoder, TokenVocabulary
from spotlight.jobs import LoraSpec

CONFIG = {
    "patch_size": 4,
    "in_channels": 48,
    "out_channels": 3,
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 24,
    "axes_dims_rope": (4, 6, 6),
}
SIZE = {"height": 16, "width": 16}


def bare_transformer(seed: int = 0) -> QwenImageTransformer2DModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return QwenImageTransformer2DModel(**CONFIG).eval()


def tiny_model(*, lora: bool = False, seed: int = 0) -> FlowModel:
    """The same weights for the same seed; with `lora`, adapters that are not the identity."""
    transformer = bare_transformer(seed)
    vocabulary = TokenVocabulary(words=("red", "blue"), characters="abc", length=6, dim=24)
    generator = torch.Generator().manual_seed(seed)
    if lora:
        add_adapters(transformer, LoraSpec(rank=2, alpha=4), ("to_q", "to_out.0"))
    return FlowModel(
        QwenImage(),
        transformer,
        FlowMatchEulerDiscreteScheduler(shift=3.0),
        TokenTextEncoder.create(vocabulary, generator),
        PixelCodec(4, 3),
    )
