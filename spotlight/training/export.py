"""Exports the trained weights of a checkpoint in formats that other libraries load.

| job trains | format | folder for |
|---|---|---|
| all weights | `diffusers` | `from_pretrained` of the transformer's class |
| adapters | `diffusers` | `load_lora_weights` of the family's pipeline |
| adapters | `peft` | `PeftModel.from_pretrained` |

All hold safetensors only. Nothing is computed and no model is loaded: the weights go from one file
to the other, in float32. A model that computes in bfloat16 rounds them when it loads them, as the
workers did that validated them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import diffusers
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spotlight.diffusion.checkpoint_names import find_checkpoint
from spotlight.diffusion.families.base import Family
from spotlight.diffusion.families.registry import family_of
from spotlight.errors import CheckpointError, MissingDependency, how_to_install
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
    source = find_checkpoint(model.checkpoint)
    family = family_of(source)
    weights = load_role(checkpoint, role)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if model.tuning == "full":
            _save_transformer(family, source / "transformer", weights, partial)
        elif format == "diffusers":
            _save_for_pipelines(family, model.lora, weights, partial)
        else:
            _save_for_peft(family, model.lora, weights, partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.replace(folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be written ({error}); choose another") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _save_transformer(
    family: Family, source: Path, weights: Mapping[str, Tensor], folder: Path
) -> None:
    kind = getattr(diffusers, family.transformer)
    with torch.device("meta"):
        transformer = kind.from_config(kind.load_config(source))
    try:
        transformer.load_state_dict({**_untrained(family, source), **weights}, assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"model.checkpoint: {source} is not the model that was trained ({error})"
        ) from error
    transformer.save_pretrained(folder, safe_serialization=True)


def _untrained(family: Family, source: Path) -> dict[str, Tensor]:
    """What the transformer has besides its parameters, as it is in the job's checkpoint."""
    found: dict[str, Tensor] = {}
    for path in sorted(source.glob("*.safetensors")) if family.untrained else ():
        with safe_open(path, "pt") as file:
            names = family.untrained.intersection(file.keys())
            found |= {name: file.get_tensor(name).float() for name in names}
    return found


def _save_for_pipelines(
    family: Family, lora: LoraSpec, weights: Mapping[str, Tensor], folder: Path
) -> None:
    """The metadata hold the scale: without them a reader takes alpha to be the rank."""
    getattr(diffusers, family.pipeline).save_lora_weights(
        folder,
        transformer_lora_layers=dict(_file_names(weights)),
        transformer_lora_adapter_metadata={
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "target_modules": sorted(family.targets(lora)),
        },
    )


def _save_for_peft(
    family: Family, lora: LoraSpec, weights: Mapping[str, Tensor], folder: Path
) -> None:
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingDependency(
            f"an export for peft needs peft: {how_to_install('worker')}"
        ) from error
    LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=sorted(family.targets(lora)),
        inference_mode=True,
    ).save_pretrained(str(folder))
    named = {f"base_model.model.{name}": it for name, it in _file_names(weights).items()}
    save_file(named, folder / "adapter_model.safetensors", {"format": "pt"})


def _file_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace(_ADAPTER, "."): tensor.contiguous() for name, tensor in weights.items()}
