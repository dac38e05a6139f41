"""What the weights of a checkpoint are, by the headers of its safetensors files."""

from __future__ import annotations

import math
import os
import re
import struct
from codecs import BOM_UTF8
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from spotlight.errors import CheckpointError, UnreadableFile
from spotlight.files import MEBIBYTE, open_file, read_bytes

Shape = tuple[int, ...]

T = TypeVar("T")

_LARGEST_JSON = 16 * MEBIBYTE
"""Bytes of a JSON file, or header: an index of 20,000 tensors has two million."""
_MOST_TENSORS = 1_000_000


class _Index(msgspec.Struct, frozen=True):
    """*.safetensors.index.json"""

    weight_map: dict[str, str] = {}


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Tensor(msgspec.Struct, frozen=True):
    """An entry of a safetensors header; `__metadata__` has neither field."""

    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=16)] = (0,)
    data_offsets: tuple[_Count, _Count] = (0, 0)

    def fits(self) -> bool:
        """Whether its bytes can hold so many numbers, of a bit at least."""
        begin, end = self.data_offsets
        return math.prod(self.shape) <= 8 * (end - begin)


def read_weights(folder: Path) -> dict[str, Shape]:
    """Shape of every tensor by name; raises `CheckpointError` for absent or cut-off files."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise wrong(folder, "holds no weights (*.safetensors); copy the whole checkpoint")
    there = {file.name for file in files}
    for index in folder.glob("*.safetensors.index.json"):
        absent = sorted({*read_json(index, _Index).weight_map.values()} - there)
        if absent:
            shard = re.fullmatch(r"[a-z_]+-\d{5}-of-\d{5}\.safetensors", absent[0])
            what = folder / absent[0] if shard else f"a file that {index} names"
            raise CheckpointError(f"model.checkpoint: {what} is missing; copy the whole checkpoint")
    shapes: dict[str, Shape] = {}
    for file in files:
        shapes |= _read_header(file)
        if len(shapes) > _MOST_TENSORS:
            raise wrong(folder, f"holds more than {_MOST_TENSORS:,} tensors, which is no model")
    return shapes


def _read_header(path: Path) -> dict[str, Shape]:
    """What a safetensors file says of itself; that also tells how long it must be."""
    no_tensors = wrong(
        path, "is not a safetensors file; copy it again (with Git LFS, run `git lfs pull`)"
    )
    try:
        with open_file(path) as file:
            nbytes = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            text = file.read(length) if 2 <= length <= min(_LARGEST_JSON, nbytes - 8) else b""
        header = msgspec.json.decode(text, type=dict[str, _Tensor])
    except UnreadableFile as error:
        raise wrong(path, f"{error.problem}; copy it again") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise no_tensors from error
    header.pop("__metadata__", None)
    if not all(tensor.fits() for tensor in header.values()):
        raise no_tensors
    end = max((tensor.data_offsets[1] for tensor in header.values()), default=0)
    if nbytes < 8 + length + end:
        raise wrong(path, f"is cut off at {nbytes} of {8 + length + end} bytes; copy it again")
    return {name: tensor.shape for name, tensor in header.items()}


def wrong(path: Path, problem: str) -> CheckpointError:
    """The error of a file, or folder, of the checkpoint."""
    return CheckpointError(f"model.checkpoint: {path} {problem}")


def read_json(path: Path, kind: type[T]) -> T:
    """A JSON file of the checkpoint; raises `CheckpointError`."""
    return _decoded(path, _read(path), kind)


def read_index(path: Path) -> dict[str, Any]:
    """The same of model_index.json, which may begin with a byte order mark: unlike the files of the
    parts, no library reads it after us.
    """
    return _decoded(path, _read(path).removeprefix(BOM_UTF8), dict[str, Any])


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, most=_LARGEST_JSON)
    except UnreadableFile as error:
        raise wrong(path, f"{error.problem}; give a folder in diffusers layout") from error


def _decoded(path: Path, data: bytes, kind: type[T]) -> T:
    if data.startswith(BOM_UTF8):
        raise wrong(
            path,
            "begins with a byte order mark, which the libraries that read it refuse; save it as"
            " UTF-8 without one",
        )
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise wrong(path, "is nested too deeply; copy it again") from error
    except msgspec.DecodeError as error:
        raise wrong(path, f"is not what it should be: {error}") from error
