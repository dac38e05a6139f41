"""Tensor bundles as bytes: safetensors, so that nothing read from a wire can run code."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from spotlight.errors import TransferFailed

_LENGTH_BYTES = 8


class _Header(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def pack(tensors: dict[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Serialise named tensors (any dtype and device; copied to the CPU), and what they are."""
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        # The format refuses tensors that share memory: tied weights, overlapping views.
        apart[name] = plain.clone() if storage in storages else plain
        storages.add(storage)
    return save(apart, dict(metadata) if metadata else None)


def unpack(data: bytes) -> dict[str, Tensor]:
    """The tensors of a bundle, on the CPU; raises `TransferFailed` if it is malformed."""
    try:
        return load(data)
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        # Besides the format's own error: element types and sizes that it allows and torch does not.
        raise TransferFailed(
            f"a tensor bundle of {len(data)} bytes is malformed: {error}"
        ) from error


def metadata_of(data: bytes) -> dict[str, str]:
    """What a bundle says about its tensors; raises `TransferFailed` if it is malformed."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    try:
        header = data[_LENGTH_BYTES : _LENGTH_BYTES + length]
        return msgspec.json.decode(header, type=_Header).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TransferFailed(
            f"the header of a tensor bundle of {len(data)} bytes is malformed: {error}"
        ) from error
