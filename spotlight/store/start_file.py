"""Writes the weights that a run begins with: a training checkpoint after 0 iterations, made of
tensors of other files as they stand there. Nothing is computed, so it needs no library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from spotlight.store.checkpoint_header import HEADER, header_text

_CHUNK = 16 * 1024 * 1024
_ALIGNMENT = 8


class Piece(NamedTuple):
    """A tensor in a file."""

    path: Path
    begin: int
    """Its first byte in the file."""
    nbytes: int
    dtype: str
    """The kind of its numbers as safetensors calls it, such as `BF16`."""
    shape: tuple[int, ...]


def write_start(path: Path, pieces: Mapping[str, Piece], metadata: Mapping[str, str]) -> None:
    """Write a checkpoint of these tensors by name, whole or not at all. Raises `OSError`."""
    part = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("wb") as file:
            file.write(_header(pieces, metadata))
            for piece in pieces.values():
                with piece.path.open("rb") as source:
                    source.seek(piece.begin)
                    _copy(source, file, piece)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _header(pieces: Mapping[str, Piece], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {HEADER: header_text(metadata)}}
    end = 0
    for name, piece in pieces.items():
        begin, end = end, end + piece.nbytes
        entries[name] = {"dtype": piece.dtype, "shape": piece.shape, "data_offsets": (begin, end)}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _copy(source: BinaryIO, target: BinaryIO, piece: Piece) -> None:
    left = piece.nbytes
    while left:
        data = source.read(min(left, _CHUNK))
        if not data:
            raise OSError(f"{piece.path} is shorter than it was")
        target.write(data)
        left -= len(data)
