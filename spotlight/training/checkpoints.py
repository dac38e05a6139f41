"""Training checkpoints: one safetensors file with the tensors, and the metadata in its header.

Who writes one hands it over whole: a store takes it when all of it is there, and from there it gets
its name in the run folder at once. Reading one cannot run code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spotlight.errors import CheckpointError

FORMAT = "spotlight-training"
VERSION = 1
_HEADER = "spotlight"

Role = Literal["ema", "weights"]
"""Weights in a checkpoint that others may load: the average that validation scores, or the newest.
"""


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write `tensors` and `metadata` (iteration, job, ...) to a file that nobody reads yet.

    Raises `CheckpointError` when the disk refuses.
    """
    header = {"format": FORMAT, "version": VERSION, "metadata": dict(metadata)}
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, path, {_HEADER: json.dumps(header, sort_keys=True)})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: the checkpoint cannot be written ({error}); free space or choose another"
            " folder"
        ) from error


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, on the CPU, and the metadata of `save_checkpoint`.

    Raises `CheckpointError` naming the file when it is missing, truncated, foreign or too new.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = _read_header(path, (file.metadata() or {}).get(_HEADER))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: not a complete checkpoint ({error}); resume from an earlier one"
        ) from error


def load_role(path: Path, role: Role) -> dict[str, Tensor]:
    """Some weights of a checkpoint by their names in the model, float32, on the CPU; nothing else
    of it is read.

    Raises `CheckpointError` as `load_checkpoint`, and when it holds no such weights.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            _read_header(path, (file.metadata() or {}).get(_HEADER))
            names = [name for name in file.keys() if name.startswith(f"{role}/")]  # noqa: SIM118
            found = {name.removeprefix(f"{role}/"): file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: not a complete checkpoint ({error}); export an earlier one"
        ) from error
    if not found:
        raise CheckpointError(f"{path}: holds no weights `{role}`; name a checkpoint of a job")
    return found


def _read_header(path: Path, text: str | None) -> dict[str, str]:
    try:
        header = json.loads(text or "")
        known, version = header["format"] == FORMAT, int(header["version"])
        metadata = {str(name): str(value) for name, value in header["metadata"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        known, version, metadata = False, 0, {}
    if not known:
        raise CheckpointError(
            f"{path}: a safetensors file, but no training checkpoint; name one that a job wrote"
        )
    if version > VERSION:
        raise CheckpointError(
            f"{path}: format version {version} is newer than {VERSION}; use a newer Spotlight"
        )
    return metadata
