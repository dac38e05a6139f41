"""Exports the trained weights of a checkpoint in formats that other libraries load.

| job trains | format | folder for |
|---|---|---|
| all weights | `diffusers` | `QwenImageTransformer2DModel.from_pretrained` |
| adapters | `diffusers` | `QwenImagePipeline.load_lora_weights` |
| adapters | `peft` | `PeftModel.from_pretrained` |

All hold safetensors only. Nothing is computed and no model is loaded: the weights go from one file
to the other, in float32. A model that computes in bfloat16 rounds them when it loads them, as the
workers did that validated them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import QwenImageTransformer2DModel
from diffusers.loaders import QwenImageLoraLoaderMixin
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from spotlight.assets import resolve_checkpoint
from spotlight.errors import CheckpointError, MissingDependency
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.training.checkpoints import Role, load_role
from spotlight.types import ExportFormat

_ADAPTER = ".default."
"""How peft calls the adapter of a job in the names of its weights, and leaves away in files."""


def export_checkpoint(
    model: ModelSpec,
    checkpoint: Path,
    folder: Path,
    *,
    role: Role = "ema",
    format: ExportFormat = "diffusers",
    replace: bool = False,
) -> None:
    """Write weights of a training checkpoint to `folder`.

    Args:
        model: of the job that wrote the checkpoint.
        checkpoint: as `save_checkpoint` wrote it.
        folder: new or empty; with `replace`, what is there is deleted. It appears complete or not
            at all.
        role: the averaged weights that validation scores, or the newest.
        format: for whom; adapters alone can be written for peft.

    Raises `CheckpointError` naming the folder, the file or the weight, and `MissingDependency`.
    """
    if not replace and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder}: already exists; export to a new or an empty folder")
    if format == "peft" and model.tuning != "lora":
        raise CheckpointError(
            f"{checkpoint}: the job trains all weights, but peft reads only adapters; export it for"
            " diffusers"
        )
    weights = load_role(checkpoint, role)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if model.tuning == "full":
            _save_transformer(model, weights, partial)
        elif format == "diffusers":
            _save_for_pipelines(model.lora, weights, partial)
        else:
            _save_for_peft(model, weights, partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.replace(folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be written ({error}); choose another") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _save_transformer(model: ModelSpec, weights: Mapping[str, Tensor], folder: Path) -> None:
    source = resolve_checkpoint(model.checkpoint) / "transformer"
    with torch.device("meta"):
        transformer = QwenImageTransformer2DModel.from_config(
            QwenImageTransformer2DModel.load_config(source)
        )
    try:
        transformer.load_state_dict(dict(weights), assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"model.checkpoint: {source} is not the model that was trained ({error})"
        ) from error
    transformer.save_pretrained(folder, safe_serialization=True)


def _save_for_pipelines(lora: LoraSpec, weights: Mapping[str, Tensor], folder: Path) -> None:
    """The metadata hold the scale: without them a reader takes alpha to be the rank."""
    QwenImageLoraLoaderMixin.save_lora_weights(
        folder,
        transformer_lora_layers=dict(_file_names(weights)),
        transformer_lora_adapter_metadata={
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "target_modules": sorted(lora.targets),
        },
    )


def _save_for_peft(model: ModelSpec, weights: Mapping[str, Tensor], folder: Path) -> None:
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingDependency(
            "an export for peft needs peft: pip install spotlight-rl[worker]"
        ) from error
    LoraConfig(
        r=model.lora.rank,
        lora_alpha=model.lora.alpha,
        target_modules=sorted(model.lora.targets),
        inference_mode=True,
    ).save_pretrained(str(folder))
    named = {f"base_model.model.{name}": it for name, it in _file_names(weights).items()}
    save_file(named, folder / "adapter_model.safetensors", {"format": "pt"})


def _file_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace(_ADAPTER, "."): tensor.contiguous() for name, tensor in weights.items()}
