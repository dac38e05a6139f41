"""Tiny checkpoints with random weights, one of each family, in diffusers layout.

    python -m spotlight_simulation.tiny_families sd3 /tmp/sd3-tiny

They have all parts of a real one, loads in its pipeline, and draws noise: for tests of whole jobs,
not for pictures. The same family gives the same weights every time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AnyFlowPipeline,
    AnyFlowTransformer3DModel,
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    AutoencoderKLQwenImage21,
    AutoencoderKLWan,
    FlowMapEulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    FluxPipeline,
    FluxTransformer2DModel,
    Krea2Pipeline,
    Krea2Transformer2DModel,
    QwenImage21Pipeline,
    QwenImage21Transformer2DModel,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLModel,
    Qwen3VLProcessor,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

from spotlight.diffusion.families.base import INDEX
from spotlight_simulation.text_pipelines import PROCESSOR, TextProcessor

_TEXT_WIDTH = 32
"""Channels of the long embedding."""
_CLIP_WIDTH = 16
_BEGIN, _END, _PAD = "<begin>", "<end>", "<pad>"
_OF_IMAGES = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
_IDS = ("vision_start_token_id", "image_token_id", "vision_end_token_id")
"""What the text encoder's configuration calls these tokens."""
_VOCABULARY = 256 + 3
_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{{ message.content[0].text }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""What Qwen's chat template makes of one message of text."""
_HEADS: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16}
_WAN: dict[str, Any] = {
    **_HEADS,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": _TEXT_WIDTH,
    "freq_dim": 32,
    "ffn_dim": 64,
    "num_layers": 2,
    "rope_max_seq_len": 32,
}


def make_tiny_checkpoint(family: str, folder: Path) -> None:
    """Write the checkpoint of a family; raises `KeyError` for one that is not known."""
    make = _MAKERS[family]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pipeline = make()
    pipeline.save_pretrained(folder, safe_serialization=True)
    if family == "qwen-image-edit":
        Qwen2VLImageProcessorPil().save_pretrained(folder / PROCESSOR)
        _name_processor(folder, "Qwen2VLProcessor")
    elif PROCESSOR in pipeline.config:
        _name_processor(folder, Qwen3VLProcessor.__name__)


def make_flux_without_guidance(folder: Path) -> None:
    """Write a checkpoint as FLUX.1-schnell is: guidance is no input of its transformer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pipeline = _flux(guidance_embeds=False)
    pipeline.save_pretrained(folder, safe_serialization=True)


def _qwen_image() -> Any:
    return QwenImagePipeline(
        FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192
        ),
        _qwen_vae(),
        _qwen_text(),
        _tokenizer(),
        QwenImageTransformer2DModel(
            **_HEADS,
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=2,
            joint_attention_dim=_TEXT_WIDTH,
            axes_dims_rope=(4, 6, 6),
        ),
    )


def _qwen_image_edit() -> Any:
    """Its VAE covers 32 pixels with one of its latents, so that a megapixel is few tokens."""
    tokenizer = _tokenizer()
    tokenizer.add_tokens(list(_OF_IMAGES), special_tokens=True)
    ids = dict(zip(_IDS, map(tokenizer.convert_tokens_to_ids, _OF_IMAGES), strict=True))
    encoder = _qwen_text(vocabulary=_VOCABULARY + len(ids), **ids)
    return QwenImageEditPlusPipeline(
        FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192
        ),
        AutoencoderKLQwenImage(
            base_dim=2,
            z_dim=4,
            dim_mult=[1, 1, 1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, False, False, False, True],
            latents_mean=[0.1, -0.2, 0.3, 0.0],
            latents_std=[1.0, 2.0, 0.5, 1.5],
        ),
        encoder,
        tokenizer,
        None,  # transformers makes one only where torchvision is installed
        QwenImageTransformer2DModel(
            **_HEADS,
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=2,
            joint_attention_dim=_TEXT_WIDTH,
            axes_dims_rope=(4, 6, 6),
            zero_cond_t=True,
        ),
    )


def _qwen_image_21() -> Any:
    tokenizer = _chatting_tokenizer()
    tokenizer.add_tokens("<|image_pad|>", special_tokens=True)
    return QwenImage21Pipeline(
        FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192
        ),
        AutoencoderKLQwenImage21(
            base_dim=8,
            decoder_base_dim=8,
            z_dim=4,
            dim_mult=[1, 1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, True, True, True],
            latents_mean=[0.1, -0.2, 0.3, 0.0],
            latents_std=[1.0, 2.0, 0.5, 1.5],
        ),
        _qwen3_vl(Qwen3VLForConditionalGeneration, layers=2, vocabulary=_VOCABULARY + 1),
        TextProcessor(tokenizer),
        QwenImage21Transformer2DModel(
            **_HEADS,
            in_channels=4,
            out_channels=4,
            num_layers=2,
            context_in_dim=_TEXT_WIDTH,
            axes_dims_rope=(4, 6, 6),
        ),
    )


def _name_processor(folder: Path, kind: str) -> None:
    """As a pipeline with the whole processor would."""
    index = folder / INDEX
    content = json.loads(index.read_text(encoding="utf-8"))
    content[PROCESSOR] = ["transformers", kind]
    index.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _z_image() -> Any:
    return ZImagePipeline(
        FlowMatchEulerDiscreteScheduler(shift=3.0),
        _image_vae(),
        _qwen3(Qwen3Model),
        _chatting_tokenizer(),
        ZImageTransformer2DModel(
            in_channels=4,
            dim=48,
            n_layers=2,
            n_refiner_layers=1,
            n_heads=2,
            n_kv_heads=2,
            cap_feat_dim=_TEXT_WIDTH,
            axes_dims=(8, 8, 8),
            axes_lens=(640, 32, 32),
        ),
    )


def _chatting_tokenizer() -> Any:
    tokenizer = _tokenizer()
    tokenizer.chat_template = _CHAT
    return tokenizer


def _qwen3(kind: type, *, layers: int = 2) -> Any:
    return kind(
        Qwen3Config(
            hidden_size=_TEXT_WIDTH,
            intermediate_size=16,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            vocab_size=_VOCABULARY,
        )
    ).eval()


def _sd3() -> Any:
    return StableDiffusion3Pipeline(
        SD3Transformer2DModel(
            **_HEADS,
            sample_size=16,
            in_channels=4,
            out_channels=4,
            num_layers=2,
            joint_attention_dim=_TEXT_WIDTH,
            caption_projection_dim=32,
            pooled_projection_dim=2 * _CLIP_WIDTH,
            pos_embed_max_size=24,
            dual_attention_layers=(0,),
            qk_norm="rms_norm",
        ),
        FlowMatchEulerDiscreteScheduler(shift=3.0),
        _image_vae(),
        _clip(CLIPTextModelWithProjection),
        _tokenizer(_BEGIN, _END, 77),
        _clip(CLIPTextModelWithProjection),
        _tokenizer(_BEGIN, _END, 77),
        _t5(T5EncoderModel, T5Config),
        _tokenizer(None, _END),
    )


def _flux(*, guidance_embeds: bool = True) -> Any:
    return FluxPipeline(
        FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, shift=3.0
        )
        if guidance_embeds
        else FlowMatchEulerDiscreteScheduler(shift=1.0),
        _image_vae(),
        _clip(CLIPTextModel),
        _tokenizer(_BEGIN, _END, 77),
        _t5(T5EncoderModel, T5Config),
        _tokenizer(None, _END),
        FluxTransformer2DModel(
            **_HEADS,
            patch_size=1,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            joint_attention_dim=_TEXT_WIDTH,
            pooled_projection_dim=_CLIP_WIDTH,
            guidance_embeds=guidance_embeds,
            axes_dims_rope=(4, 6, 6),
        ),
    )


def _flux2_klein() -> Any:
    vae: Any = AutoencoderKLFlux2(
        latent_channels=4,
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
    )
    torch.nn.init.normal_(vae.bn.running_mean)
    torch.nn.init.uniform_(vae.bn.running_var, 0.5, 2.0)
    return Flux2KleinPipeline(
        FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0),
        vae,
        _qwen3(Qwen3ForCausalLM, layers=27),
        _chatting_tokenizer(),
        Flux2Transformer2DModel(
            **_HEADS,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            joint_attention_dim=3 * _TEXT_WIDTH,
            guidance_embeds=False,
            axes_dims_rope=(4, 4, 4, 4),
        ),
    )


def _wan(**more: Any) -> Any:
    return WanPipeline(
        tokenizer=_tokenizer(None, _END),
        text_encoder=_t5(UMT5EncoderModel, UMT5Config),
        vae=_frames_vae(),
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        transformer=_wan_transformer(),
        **more,
    )


def _anyflow() -> Any:
    """For Wan's text encoder and autoencoder."""
    return AnyFlowPipeline(
        tokenizer=_tokenizer(None, _END),
        text_encoder=_t5(UMT5EncoderModel, UMT5Config),
        vae=_frames_vae(),
        scheduler=FlowMapEulerDiscreteScheduler(shift=5.0),
        transformer=AnyFlowTransformer3DModel(**_WAN),
    )


def _frames_vae() -> AutoencoderKLWan:
    return AutoencoderKLWan(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.0, 2.0, 0.5, 1.5],
    )


def _wan_transformer() -> WanTransformer3DModel:
    return WanTransformer3DModel(**_WAN)


def _wan_a14b() -> Any:
    """Of two transformers."""
    return _wan(transformer_2=_wan_transformer(), boundary_ratio=0.875)


def _krea2() -> Any:
    return Krea2Pipeline(
        FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, max_image_seq_len=6400
        ),
        _qwen_vae(),
        _qwen3_vl(Qwen3VLModel, layers=36),
        _tokenizer(),
        Krea2Transformer2DModel(
            **_HEADS,
            in_channels=16,
            num_layers=2,
            num_key_value_heads=1,
            intermediate_size=48,
            timestep_embed_dim=32,
            text_hidden_dim=_TEXT_WIDTH,
            num_text_layers=12,
            text_num_attention_heads=2,
            text_num_key_value_heads=2,
            text_intermediate_size=48,
            num_layerwise_text_blocks=1,
            num_refiner_text_blocks=1,
            axes_dims_rope=(4, 6, 6),
        ),
    )


def _qwen_vae() -> AutoencoderKLQwenImage:
    return AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.0, 2.0, 0.5, 1.5],
    )


def _image_vae() -> AutoencoderKL:
    return AutoencoderKL(
        latent_channels=4,
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
        scaling_factor=1.5,
        shift_factor=0.1,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def _clip(kind: type) -> Any:
    config = CLIPTextConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_CLIP_WIDTH,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=_CLIP_WIDTH,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
    )
    return kind(config).eval()


def _t5(kind: type, config: type) -> Any:
    return kind(
        config(
            vocab_size=_VOCABULARY,
            d_model=_TEXT_WIDTH,
            d_kv=16,
            d_ff=32,
            num_layers=1,
            num_heads=2,
            eos_token_id=257,
            pad_token_id=258,
        )
    ).eval()


def _qwen_text(*, vocabulary: int = _VOCABULARY, **ids: int) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": _TEXT_WIDTH,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_scaling": {"mrope_section": [2, 2, 4], "rope_type": "default", "type": "default"},
        "rope_theta": 1000000.0,
        "vocab_size": vocabulary,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": _TEXT_WIDTH,
    }
    whole: dict[str, Any] = {
        "text_config": sizes,
        "vision_config": vision,
        "vocab_size": vocabulary,
    } | ids
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**whole)).eval()


def _qwen3_vl(kind: type, *, layers: int, vocabulary: int = _VOCABULARY) -> Any:
    text: dict[str, Any] = {
        "hidden_size": _TEXT_WIDTH,
        "intermediate_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_scaling": {"mrope_section": [2, 2, 4], "rope_type": "default"},
        "vocab_size": vocabulary,
    }
    vision: dict[str, Any] = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": _TEXT_WIDTH,
        "deepstack_visual_indexes": [0],
    }
    return kind(Qwen3VLConfig(text_config=text, vision_config=vision)).eval()


def _tokenizer(begin: str | None = None, end: str | None = None, longest: int = 512) -> Any:
    """One token for each byte, and marks before and behind the text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, _BEGIN, _END, _PAD])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_BEGIN, _END, _PAD])
    marks = [(token, vocabulary[token]) for token in (begin, end) if token]
    if marks:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(filter(None, (begin, "$A", end))), special_tokens=marks
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=_PAD, eos_token=end, model_max_length=longest
    )


_MAKERS: dict[str, Callable[[], Any]] = {
    "qwen-image": _qwen_image,
    "qwen-image-2.1": _qwen_image_21,
    "sd3": _sd3,
    "flux": _flux,
    "flux2-klein": _flux2_klein,
    "wan": _wan,
    "anyflow": _anyflow,
    "wan-a14b": _wan_a14b,
    "krea2": _krea2,
    "z-image": _z_image,
    "qwen-image-edit": _qwen_image_edit,
}


if __name__ == "__main__":
    make_tiny_checkpoint(sys.argv[1], Path(sys.argv[2]))
