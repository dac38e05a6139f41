"""Several safetensors files, each with some rows of the same tensors, become one with all rows.

Rows lie along the first dimension, so a whole tensor is the bytes of its rows, one part behind the
other: nothing is computed, and no tensor library is needed. Where rows belong is what
torch.distributed.checkpoint says in the header of a file; that is gone from the joined one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec

from spotlight.errors import TransferFailed
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.incoming import Incoming

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_CHUNK = 1024 * 1024
_METADATA = "__metadata__"
_OFFSETS, _VERSION = "DCP_SHARDING_INFO", "DCP_VERSION"


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Saved(msgspec.Struct):
    saved_offsets: list[int]


class _Part:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        self.begin = _LENGTH_BYTES + length
        try:
            header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
            metadata = header.pop(_METADATA, msgspec.Raw(b"{}"))
            self.metadata = msgspec.json.decode(metadata, type=dict[str, str])
            self.tensors = {
                name: msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items()
            }
            rows = msgspec.json.decode(self.metadata.pop(_OFFSETS), type=dict[str, _Saved])
            self.first = {name: sum(rows[name].saved_offsets[:1]) for name in self.tensors}
        except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, OverflowError) as error:
            raise TransferFailed(f"a part to be joined is malformed: {error}") from error
        self.metadata.pop(_VERSION, None)


def join(folder: Folder, keys: Sequence[str], incoming: Incoming) -> None:
    """Keep what arrives: the files of these keys, joined. Raises `TransferFailed` and `OSError`."""
    with incoming, contextlib.ExitStack() as undo:
        incoming.write(joined([undo.enter_context(folder.open(key)) for key in keys]))
        incoming.keep()


def joined(files: Sequence[BinaryIO]) -> Iterator[bytes]:
    """The bytes of the file with all rows. Raises `TransferFailed` if a file is malformed, is a
    part of something else than the first, or rows are missing between them.
    """
    parts = [_Part(file) for file in files]
    if any(part.metadata != parts[0].metadata for part in parts):
        raise TransferFailed("the parts to be joined are of different states")
    header: dict[str, object] = {_METADATA: parts[0].metadata}
    sources: list[tuple[_Part, int, int]] = []
    end = 0
    names = sorted(parts[0].tensors, key=lambda name: parts[0].tensors[name].data_offsets)
    if odd := {name for part in parts for name in part.tensors} - set(names):
        raise TransferFailed(f"the first part to be joined lacks {min(odd)}")
    for name in names:
        pieces = sorted(
            (part for part in parts if name in part.tensors), key=lambda part: part.first[name]
        )
        first = pieces[0].tensors[name]
        if not first.shape:
            pieces = pieces[:1]  # every part has it
        length, begin = 0, end
        for part in pieces:
            tensor = part.tensors[name]
            fits = (tensor.dtype, tensor.shape[1:]) == (first.dtype, first.shape[1:])
            if part.first[name] != length or not fits:
                raise TransferFailed(f"{name}: no part has row {length} of it")
            length += sum(tensor.shape[:1])
            start, stop = tensor.data_offsets
            sources.append((part, start, stop))
            end += stop - start
        shape = [length, *first.shape[1:]] if first.shape else []
        header[name] = _Tensor(first.dtype, shape, (begin, end))
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(_LENGTH_BYTES, "little")
    yield text
    for part, start, stop in sources:
        yield from _range(part, start, stop)


def _range(part: _Part, start: int, stop: int) -> Iterator[bytes]:
    part.file.seek(part.begin + start)
    left = stop - start
    while left:
        data = part.file.read(min(left, _CHUNK))
        if not data:
            raise TransferFailed("a part to be joined is cut off")
        left -= len(data)
        yield data
