"""Tensor bundles as bytes and files: safetensors, so that nothing read from a wire can run code."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from spotlight.errors import TransferFailed
from spotlight.transport.tensors.offers import own_file
from spotlight.types import BundleOffer

_LENGTH_BYTES = 8
_FAULT_BYTES = 64 * 1024
"""Bytes of a mapped file that the kernel maps at the first touch of a part of them."""
_MALFORMED = (SafetensorError, LookupError, TypeError, ValueError, RuntimeError)
"""What reading raises besides the format's own error: element types and sizes that it allows and
torch does not."""


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
    except _MALFORMED as error:
        raise TransferFailed(
            f"a tensor bundle of {len(data)} bytes is malformed: {error}"
        ) from error


def map_copy(offer: BundleOffer) -> dict[str, Tensor] | None:
    """The tensors of a copy that a store of this machine has verified, on the CPU, as views on its
    file: nothing is copied, and all processes share the memory.

    The file may be replaced or deleted meanwhile; it is mapped until the last of the tensors is
    gone. Who writes to them gets a page of his own; the file and others never see it.

    Returns None when the bundle must be fetched; raises `TransferFailed` if it is malformed.
    """
    path = own_file(offer)
    if path is None:
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
    except OSError:
        return None  # deleted meanwhile
    except _MALFORMED as error:
        raise TransferFailed(f"the tensor bundle {offer.key} is malformed: {error}") from error
    return tensors


def touch(tensors: dict[str, Tensor]) -> None:
    """Have the kernel bring the pages of mapped tensors into this process: whoever copies them then
    need not wait for each. It begins at the end, as he may have begun at the beginning.
    """
    for tensor in reversed(tensors.values()):
        tensor.flatten().view(torch.uint8)[::_FAULT_BYTES].sum()


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
