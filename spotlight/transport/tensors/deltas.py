"""What differs between two bundles of the same size, such as a part of two weights versions.

An optimizer step changes few of the numbers of a bfloat16 model, as most steps are too small for
their eight bits: one in 36 at steps of 1e-6, one in six at 1e-5 (weights of 0.02). So the delta is
a row of words of 16 bits: where, and what is there now.

A delta is cut into chunks of `CHUNK` bytes of the bundle, and each is readable by itself, so that a
transfer goes on behind the last one that has come. A chunk has, little endian:

- for each 65,536 words of it how many differ, uint32;
- for each word that differs its place among these 65,536, uint16;
- for each the new word.

One that would be larger than its bytes is `WHOLE`, uint32, and its bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from spotlight.errors import TransferFailed

CHUNK = 8 * 1024 * 1024
"""Of a bundle, in bytes."""
WHOLE = 0xFFFFFFFF
_BLOCK = 2**16
_SAMPLES = 256
_SAMPLE = 4096
_BYTES_PER_WORD = 4

Bytes = NDArray[np.uint8]


def size_of_delta(base: Bytes, bundle: Bytes) -> float:
    """About how large the delta is, as a share of the bundle; from a small part of both. Above 1
    for what has little in common."""
    if base.size != bundle.size:
        return float("inf")
    starts = np.linspace(0, max(bundle.size - _SAMPLE, 0), _SAMPLES, dtype=np.int64) & ~1
    pieces = [slice(start, start + _SAMPLE) for start in starts.tolist()]
    differing = sum(np.count_nonzero(_words(base[p]) != _words(bundle[p])) for p in pieces)
    looked_at = sum(bundle[piece].size for piece in pieces)
    return differing * _BYTES_PER_WORD / max(looked_at, 1)


def encoded(base: Bytes, bundle: Bytes) -> bytes:
    """The delta of one chunk, both uint8 [N], N at most `CHUNK`."""
    whole = np.uint32(WHOLE).tobytes() + bundle.tobytes()
    if bundle.size % 2:
        return whole
    old, new = _words(base), _words(bundle)
    places = np.flatnonzero(old != new)
    if places.size * _BYTES_PER_WORD >= bundle.size:
        return whole
    counts = np.bincount(places // _BLOCK, minlength=_blocks(bundle.size)).astype("<u4")
    return counts.tobytes() + places.astype("<u2").tobytes() + new[places].tobytes()


def decoded(base: Bytes, read: Callable[[int], bytes]) -> Bytes:
    """A chunk of the bundle, uint8 [N], from that of the base, uint8 [N], and its delta: `read`
    returns exactly so many bytes of it, or raises.

    Raises `TransferFailed` for what is no delta of such a chunk.
    """
    first = read(4)
    if first == np.uint32(WHOLE).tobytes():
        return np.frombuffer(read(base.size), np.uint8)
    blocks = _blocks(base.size)
    counts = np.frombuffer(first + read(4 * (blocks - 1)), "<u4")
    if base.size % 2 or counts.max() > _BLOCK:
        raise TransferFailed("malformed delta: it does not fit the bundle")
    total = int(counts.sum())
    within = np.frombuffer(read(2 * total), "<u2")
    places = np.repeat(np.arange(blocks, dtype=np.int64) * _BLOCK, counts) + within
    if total and int(places.max()) >= base.size // 2:
        raise TransferFailed("malformed delta: it reaches beyond the bundle")
    chunk = base.copy()
    _words(chunk)[places] = np.frombuffer(read(2 * total), "<u2")
    return chunk


def _words(data: Bytes) -> NDArray[np.uint16]:
    return data[: data.size // 2 * 2].view("<u2")


def _blocks(nbytes: int) -> int:
    return max(1, -(-nbytes // (2 * _BLOCK)))
