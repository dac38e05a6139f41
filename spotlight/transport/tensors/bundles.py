"""Tensor bundles as bytes: safetensors, so that nothing read from a wire can run code."""

from __future__ import annotations

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from spotlight.errors import TransferFailed


def pack(tensors: dict[str, Tensor]) -> bytes:
    """Serialise named tensors (any dtype and device; copied to the CPU)."""
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        # The format refuses tensors that share memory: tied weights, overlapping views.
        apart[name] = plain.clone() if storage in storages else plain
        storages.add(storage)
    return save(apart)


def unpack(data: bytes) -> dict[str, Tensor]:
    """The tensors of a bundle, on the CPU; raises `TransferFailed` if it is malformed."""
    try:
        return load(data)
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        # Besides the format's own error: element types and sizes that it allows and torch does not.
        raise TransferFailed(
            f"a tensor bundle of {len(data)} bytes is malformed: {error}"
        ) from error
