"""The trained transformer in the formats that others load.

Full fine-tuning gives a folder for `QwenImageTransformer2DModel.from_pretrained`; adapters give one
for `peft.PeftModel.from_pretrained(base, folder)`. Both hold safetensors only.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import CheckpointError

_ADAPTER = "default"
_PEFT_PREFIX = "base_model.model."


def export_transformer(model: DiffusionModel, folder: Path) -> None:
    """Write the weights that the model holds now to `folder`, which must be new or empty.

    An adapter if the transformer has one, else the whole transformer with its configuration. The
    folder appears complete or not at all. Raises `CheckpointError` naming it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder}: is there already; export to a new or an empty folder")
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
    """peft's layout, written here: the adapter was injected, so there is no PeftModel to ask."""
    from peft import get_peft_model_state_dict

    state: dict[str, Tensor] = get_peft_model_state_dict(
        transformer, adapter_name=_ADAPTER, save_embedding_layers=False
    )
    tensors = {f"{_PEFT_PREFIX}{name}": tensor.contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = copy.copy(transformer.peft_config[_ADAPTER])
    config.inference_mode = True
    config.save_pretrained(folder)
