"""Training checkpoints: one safetensors file with the tensors, and the metadata in its header.

A rank of a sharded model leaves a file with the rows that it holds of every tensor. Such a part is
what `HuggingFaceStorageWriter` of torch.distributed.checkpoint writes for a rank: torch reads a
folder of all parts, too. It is written here because that writer plans with all ranks at once and
wants a file system that they share; a rank hands its part to stores by itself.

Who writes one hands it over whole: a store takes it when all of it is there, and from there it gets
its name in the run folder at once. Reading one cannot run code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spotlight.errors import CheckpointError
from spotlight.store.checkpoint_header import FACTOR, FORMAT, HEADER, START, VERSION, header_text
from spotlight.training.weights import Rows

Role = Literal["ema", "weights"]
"""Weights in a checkpoint that others may load: the average that validation scores, or the newest.
"""


OFFSETS, _OFFSETS_VERSION = "DCP_SHARDING_INFO", "DCP_VERSION"
"""The names that torch.distributed.checkpoint has for where in the whole tensors those of a file
begin."""


class State(NamedTuple):
    """What a rank leaves for others: tensors named `role/weight`, and the rows of every weight that
    they hold, or None if they hold all."""

    tensors: Mapping[str, Tensor]
    rows: Mapping[str, Rows] | None = None


def save_checkpoint(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    rows: Mapping[str, Rows] | None = None,
) -> None:
    """Write `tensors` and `metadata` (iteration, job, ...) to a file that nobody reads yet. With
    `rows`, the tensors `role/weight` are these rows of every weight.

    Raises `CheckpointError` when the disk refuses.
    """
    about = {HEADER: header_text(metadata)}
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if rows is not None:
        contiguous = {name: it for name, it in contiguous.items() if it.numel()}
        offsets = {
            name: {"saved_offsets": _begins(name, it, rows)} for name, it in contiguous.items()
        }
        about |= {OFFSETS: json.dumps(offsets), _OFFSETS_VERSION: "1.0"}
    try:
        save_file(contiguous, path, about)
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
            metadata = read_header(path, (file.metadata() or {}).get(HEADER))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: not a complete checkpoint ({error}); resume from an earlier one"
        ) from error


def load_role(path: Path, role: Role) -> dict[str, Tensor]:
    """Some weights of a checkpoint by their names in the model, float32, on the CPU; nothing else
    of it is read. Of weights that a run began with the average is the weights themselves.

    Raises `CheckpointError` as `load_checkpoint`, and when it holds no such weights.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = read_header(path, (file.metadata() or {}).get(HEADER))
            every = [*file.keys()]
            if START in metadata and not any(name.startswith("ema/") for name in every):
                role = "weights"
            names = [name for name in every if name.startswith(f"{role}/")]
            found = {
                name.removeprefix(f"{role}/"): scaled(name, file.get_tensor(name), metadata)
                for name in names
            }
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: not a complete checkpoint ({error}); export an earlier one"
        ) from error
    if not found:
        raise CheckpointError(f"{path}: holds no weights `{role}`; name a checkpoint of a job")
    return found


def scaled(name: str, tensor: Tensor, metadata: Mapping[str, str]) -> Tensor:
    """A tensor of weights that a run began with, float32, as the job's adapters have it; of any
    other checkpoint as it is."""
    if START not in metadata:
        return tensor
    factor = float(metadata[FACTOR]) if ".lora_B." in name else 1.0
    return tensor.float() * factor


def _begins(name: str, tensor: Tensor, rows: Mapping[str, Rows]) -> list[int]:
    _, _, weight = name.partition("/")
    return [rows[weight].first, *[0] * (tensor.dim() - 1)] if tensor.dim() else []


def read_header(path: Path, text: str | None) -> dict[str, str]:
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
