"""What the weights of a checkpoint are, by the headers of its safetensors files."""

from __future__ import annotations

import math
import os
import re
import struct
from codecs import BOM_UTF8
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from spotlight.errors import CheckpointError, UnreadableFile
from spotlight.files import MEBIBYTE, open_file, read_bytes

Shape = tuple[int, ...]

T = TypeVar("T")

_LARGEST_JSON = 16 * MEBIBYTE
"""Bytes of a JSON file, or header: an index of 20,000 tensors has two million."""
_MOST_TENSORS = 1_000_000
_NBYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "BOOL": 1}
"""Bytes of a number of each kind that weights may have. Any other kind is quantised: it means
nothing without the scales that belong to it."""
_VARIANTS = (None, "bf16", "fp16")
"""Copies of the weights, by what is in the names of their files; the first that is there is read.
"""
_SHOWN = re.compile(r"[\w.-]{1,200}", re.ASCII)


class _Index(msgspec.Struct, frozen=True):
    """*.safetensors.index.json"""

    weight_map: dict[str, str] = {}


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class FileTensor(msgspec.Struct, frozen=True):
    """An entry of a safetensors header; `__metadata__` has none of the fields."""

    dtype: str = ""
    """The kind of its numbers, such as `F32` or `BF16`."""
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=16)] = (0,)
    """The length of each dimension."""
    data_offsets: tuple[_Count, _Count] = (0, 0)
    """Its first byte behind the header, and the first after it."""

    def fits(self) -> bool:
        """Whether its bytes hold so many numbers: of a bit at least, where their kind is not known
        here.
        """
        begin, end = self.data_offsets
        numbers, known = math.prod(self.shape), _NBYTES.get(self.dtype)
        fits = numbers * known == end - begin if known else numbers <= 8 * (end - begin)
        return bool(self.dtype) and fits


class Header(NamedTuple):
    """What a safetensors file says of itself."""

    tensors: dict[str, FileTensor]
    """Its tensors by name."""
    metadata: Mapping[str, str]
    """What whoever wrote it says besides."""
    begin: int
    """The byte of the file at which the first tensor may begin."""


class _Metadata(msgspec.Struct, frozen=True):
    """The entry of a header that is no tensor."""

    metadata: dict[str, str] = msgspec.field(name="__metadata__", default={})


class Weights(msgspec.Struct, frozen=True):
    """What the libraries would load of a part of a checkpoint."""

    shapes: dict[str, Shape]
    """The shape of every tensor by its name."""
    files: dict[str, Path]
    """Which file holds the tensor of a name."""
    variant: str | None
    """What the libraries call this copy of the weights; None for the usual one."""


def read_weights(folder: Path) -> Weights:
    """The weights in the folder of a part, by the headers of their files.

    Raises `CheckpointError` for files that are absent, cut off, or hold quantised weights.
    """
    stem = "model" if folder.name.startswith("text_encoder") else "diffusion_pytorch_model"
    for variant in _VARIANTS:
        paths = _paths(folder, stem, f".{variant}" if variant else "")
        if paths:
            return _read_headers(folder, paths, variant)
    raise _no_weights(folder, stem)


def _paths(folder: Path, stem: str, variant: str) -> list[Path]:
    """The files of a copy of the weights; none if there is no such copy."""
    index = folder / f"{stem}.safetensors.index{variant}.json"
    single = folder / f"{stem}{variant}.safetensors"
    if not os.path.lexists(index):
        return [single] if os.path.lexists(single) else []
    named = sorted({*read_json(index, _Index).weight_map.values()})
    absent = [name for name in named if "/" in name or not (folder / name).exists()]
    if absent:
        shard = re.fullmatch(r"[a-z_]+(\.[a-z0-9]+)?-\d{5}-of-\d{5}\.safetensors", absent[0])
        what = folder / absent[0] if shard else f"a file that {index} names"
        raise CheckpointError(f"model.checkpoint: {what} is missing; copy the whole checkpoint")
    if not named:
        raise wrong(index, "names no files; copy it again")
    return [folder / name for name in named]


def _no_weights(folder: Path, stem: str) -> CheckpointError:
    """Why nothing in a folder can be loaded."""
    if any(folder.glob("*.safetensors")):
        return wrong(
            folder,
            f"holds no {stem}.safetensors, and no {stem}.safetensors.index.json with its shards,"
            " but other safetensors files; copy the whole checkpoint, without renaming its files",
        )
    if any(file for end in ("bin", "pt", "pth", "ckpt") for file in folder.glob(f"*.{end}")):
        return wrong(
            folder,
            "holds pickled weights, which could run code and are never loaded; save the part again"
            " with `save_pretrained`, which writes *.safetensors",
        )
    if any(folder.glob("*.gguf")):
        return wrong(
            folder,
            "holds a GGUF file, which is not read; give the weights as safetensors in bfloat16,"
            " float16 or float32 (`model.quantize` keeps those in 8 or 4 bits)",
        )
    return wrong(folder, "holds no weights (*.safetensors); copy the whole checkpoint")


def _read_headers(folder: Path, paths: list[Path], variant: str | None) -> Weights:
    shapes, files = dict[str, Shape](), dict[str, Path]()
    for path in paths:
        header = read_header(path)
        if problem := quantised(header):
            raise wrong(path, f"{problem} (`model.quantize` keeps those in 8 or 4 bits)")
        for name, tensor in header.tensors.items():
            shapes[name], files[name] = tensor.shape, path
        if len(shapes) > _MOST_TENSORS:
            raise wrong(folder, f"holds more than {_MOST_TENSORS:,} tensors, which is no model")
    return Weights(shapes, files, variant)


def read_header(path: Path) -> Header:
    """What a safetensors file says of itself; that also tells how long it must be. Raises
    `CheckpointError`."""
    no_tensors = wrong(
        path, "is not a safetensors file; copy it again (with Git LFS, run `git lfs pull`)"
    )
    try:
        with open_file(path) as file:
            nbytes = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            text = file.read(length) if 2 <= length <= min(_LARGEST_JSON, nbytes - 8) else b""
        header = msgspec.json.decode(text, type=dict[str, FileTensor])
        metadata = msgspec.json.decode(text, type=_Metadata).metadata
    except UnreadableFile as error:
        raise wrong(path, f"{error.problem}; copy it again") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise no_tensors from error
    header.pop("__metadata__", None)
    if not all(tensor.fits() for tensor in header.values()):
        raise no_tensors
    whole = 8 + length + max((tensor.data_offsets[1] for tensor in header.values()), default=0)
    if nbytes < whole:
        raise wrong(path, f"is cut off at {nbytes} of {whole} bytes; copy it again")
    if nbytes > whole:
        raise wrong(path, f"has {nbytes} bytes, but its header says {whole}; copy it again")
    return Header(header, metadata, 8 + length)


def quantised(header: Header) -> str:
    """Which numbers of a file mean nothing without scales; empty if none do."""
    for name, tensor in header.tensors.items():
        if tensor.dtype not in _NBYTES:
            return (
                f"holds {shown(name)} in {shown(tensor.dtype)}: quantised weights, whose scales"
                " would be ignored; give them in bfloat16, float16 or float32"
            )
    return ""


def shown(name: str) -> str:
    """A name that stands in a file, for an error: it may be anything."""
    return f"`{name}`" if _SHOWN.fullmatch(name) else "a tensor of a strange name"


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
