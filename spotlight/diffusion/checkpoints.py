"""Load a model from a checkpoint folder in diffusers layout (model_index.json).

A folder of Qwen-Image itself has transformer, scheduler, text_encoder, tokenizer and vae. A tiny
checkpoint has no vae, which means pixel space, and a `TokenTextEncoder` for a text encoder. Nothing
in a checkpoint can run code: weights are safetensors only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImageTransformer2DModel,
)
from safetensors import SafetensorError

from spotlight.assets import resolve_checkpoint
from spotlight.diffusion.images import ImageCodec, PixelCodec, VaeCodec
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.qwen_image import QwenImageModel
from spotlight.diffusion.qwen_tokens import QWEN_TEXT_LENGTH
from spotlight.diffusion.text import QwenTextEncoder, TextEncoder, TokenTextEncoder
from spotlight.errors import CheckpointError, MissingDependency
from spotlight.jobs import LoraSpec, ModelSpec


def load_model(spec: ModelSpec, *, device: torch.device | str | None = None) -> DiffusionModel:
    """The model of a job, on `device` (CUDA when there is one), in evaluation mode.

    float32 on the CPU, bfloat16 elsewhere; adapters are float32 and start as the identity, with the
    same values in every process. Raises `CheckpointError` naming the folder, file or field that is
    wrong, and `MissingDependency`.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    folder = resolve_checkpoint(spec.checkpoint)
    index = _read_index(folder)
    transformer = _load_weights(
        QwenImageTransformer2DModel, folder, "transformer", torch_dtype=dtype
    )
    transformer.to(device).eval()
    model = QwenImageModel(
        transformer,
        _load_part(FlowMatchEulerDiscreteScheduler, folder, "scheduler"),
        _load_text_encoder(folder, index, device, dtype),
        _load_codec(folder, index, transformer, device, dtype),
        spec.negative_prompt,
    )
    if spec.tuning == "lora":
        add_adapters(transformer, spec.lora)
    return model


def add_adapters(transformer: Any, lora: LoraSpec) -> None:
    """Freeze the transformer and inject trainable low-rank adapters; their random part is the same
    in every process.

    Raises `CheckpointError` naming `model.lora.targets` when a target is not in the transformer.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingDependency(
            "`model.tuning: lora` needs peft; pip install spotlight-rl[worker]"
        ) from error
    names = [name for name, _ in transformer.named_modules()]
    for target in lora.targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            raise CheckpointError(
                f"model.lora.targets: no module `{target}` in this transformer; name modules"
                f" such as `to_q`"
            )
    transformer.requires_grad_(False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformer.add_adapter(
            LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets))
        )
    for name, parameter in transformer.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / "model_index.json"
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"model.checkpoint: {path} cannot be read ({error.strerror}); give a folder in"
            f" diffusers layout"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"model.checkpoint: {path} is not valid JSON ({error})") from error
    if (
        not isinstance(index, dict)
        or _class_of(index, "transformer") != "QwenImageTransformer2DModel"
    ):
        raise CheckpointError(
            f"model.checkpoint: {path} names no QwenImageTransformer2DModel; only the"
            f" Qwen-Image family is supported"
        )
    return index


def _class_of(index: dict[str, Any], part: str) -> str | None:
    """The class that model_index.json gives for a part: `[library, class]`, or `[null, null]` for
    none.
    """
    entry = index.get(part)
    return entry[1] if isinstance(entry, list) and len(entry) == 2 else None


def _load_weights(cls: Any, folder: Path, part: str, **options: Any) -> Any:
    """A part with tensors, all of which must be there: the libraries would make up what is
    missing.
    """
    model, found = _load_part(
        cls, folder, part, use_safetensors=True, output_loading_info=True, **options
    )
    missing = sorted(found["missing_keys"])
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"model.checkpoint: the weights in {folder / part} lack {missing[0]}{others}; copy the"
            " whole checkpoint again"
        )
    return model


def _load_part(cls: Any, folder: Path, part: str, **options: Any) -> Any:
    if not (folder / part).is_dir():
        raise CheckpointError(
            f"model.checkpoint: {folder / part} is missing; copy the whole checkpoint"
        )
    try:
        return cls.from_pretrained(folder / part, local_files_only=True, **options)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, SafetensorError) as error:
        raise CheckpointError(
            f"model.checkpoint: {folder / part} cannot be loaded: {error}"
        ) from error


def _load_text_encoder(
    folder: Path, index: dict[str, Any], device: torch.device, dtype: torch.dtype
) -> TextEncoder:
    kind = _class_of(index, "text_encoder")
    if kind == "TokenTextEncoder":
        return TokenTextEncoder.load(folder / "text_encoder")
    if kind != "Qwen2_5_VLForConditionalGeneration":
        raise CheckpointError(
            f"text_encoder: {kind} in {folder / 'model_index.json'} is not supported; it must be"
            " Qwen2_5_VLForConditionalGeneration or TokenTextEncoder"
        )
    # transformers takes seconds to import, and tiny checkpoints do without it.
    from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

    model = _load_weights(Qwen2_5_VLForConditionalGeneration, folder, "text_encoder", dtype=dtype)
    tokenizer = _load_part(AutoTokenizer, folder, "tokenizer")
    return QwenTextEncoder(
        tokenizer, model.to(device).eval().requires_grad_(False), length=QWEN_TEXT_LENGTH
    )


def _load_codec(
    folder: Path, index: dict[str, Any], transformer: Any, device: torch.device, dtype: torch.dtype
) -> ImageCodec:
    if _class_of(index, "vae") is None:
        config = transformer.config
        return PixelCodec(config.patch_size, config.out_channels or config.in_channels)
    vae = _load_weights(AutoencoderKLQwenImage, folder, "vae", torch_dtype=dtype)
    return VaeCodec(vae.to(device).eval().requires_grad_(False))
