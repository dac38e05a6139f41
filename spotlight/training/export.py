"""The trained transformer in the formats that others load.

Full fine-tuning gives a folder for `QwenImageTransformer2DModel.from_pretrained`; adapters give one
for `load_lora_weights` of diffusers' QwenImagePipeline. Both hold safetensors only.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffusers.loaders import QwenImageLoraLoaderMixin
from torch import Tensor

from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import CheckpointError

_ADAPTER = "default"


def export_transformer(model: DiffusionModel, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write the model with these trainable weights, which it holds from then on, to `folder`, which
    must be new or empty.

    An adapter if the transformer has one, else the whole transformer with its configuration. The
    folder appears complete or not at all. Raises `CheckpointError` naming it, or a weight that the
    model does not have.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder}: is there already; export to a new or an empty folder")
    model.load_trainable_state(weights)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if getattr(model.transformer, "peft_config", None):
            _save_adapter(model.transformer, partial)
        else:
            _save_transformer(model.transformer, partial)
        partial.replace(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written ({error}); choose another") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _save_transformer(transformer: Any, folder: Path) -> None:
    transformer.save_pretrained(folder, safe_serialization=True)


def _save_adapter(transformer: Any, folder: Path) -> None:
    """As diffusers itself writes a LoRA. The metadata hold its scale: without them a reader takes
    alpha to be the rank.
    """
    from peft import get_peft_model_state_dict

    config = transformer.peft_config[_ADAPTER]
    QwenImageLoraLoaderMixin.save_lora_weights(
        folder,
        transformer_lora_layers=get_peft_model_state_dict(
            transformer, adapter_name=_ADAPTER, save_embedding_layers=False
        ),
        transformer_lora_adapter_metadata={
            "r": config.r,
            "lora_alpha": config.lora_alpha,
            "target_modules": sorted(config.target_modules),
        },
    )
