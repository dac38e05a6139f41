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

import functools
import mmap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from spotlight.errors import TransferFailed

CHUNK = 8 * 1024 * 1024
"""Bytes of a bundle that one chunk of a delta is made of."""
WHOLE = (0xFFFFFFFF).to_bytes(4, "little")
_BLOCK = 2**16
_SAMPLES = 256
_SAMPLE = 4096
_BYTES_PER_WORD = 4


@functools.cache
def are_possible() -> bool:
    """Whether numpy is installed, which workers need anyhow."""
    return find_spec("numpy") is not None


def mapped(file: BinaryIO) -> memoryview:
    """The bytes of a file that is not empty; raises `OSError`."""
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def mapped_path(path: Path) -> memoryview:
    """The same of a file that is not open."""
    with path.open("rb") as file:
        return mapped(file)


def size_of_delta(base: memoryview, bundle: memoryview) -> float:
    """About how large the delta is, as a share of the bundle; from a small part of both. Above 1
    for what has little in common."""
    import numpy as np

    if len(base) != len(bundle):
        return float("inf")
    starts = np.linspace(0, max(len(bundle) - _SAMPLE, 0), _SAMPLES, dtype=np.int64) & ~1
    pieces = [slice(start, start + _SAMPLE) for start in starts.tolist()]
    differing = sum(np.count_nonzero(_words(base[p]) != _words(bundle[p])) for p in pieces)
    looked_at = sum(len(bundle[piece]) for piece in pieces)
    return differing * _BYTES_PER_WORD / max(looked_at, 1)


def encoded(base: memoryview, bundle: memoryview) -> bytes:
    """The delta of one chunk, both of one length, at most `CHUNK` bytes."""
    import numpy as np

    if len(bundle) % 2:
        return WHOLE + bundle
    old, new = _words(base), _words(bundle)
    places = np.flatnonzero(old != new)
    if places.size * _BYTES_PER_WORD >= len(bundle):
        return WHOLE + bundle
    counts = np.bincount(places // _BLOCK, minlength=_blocks(len(bundle))).astype("<u4")
    delta: bytes = counts.tobytes() + places.astype("<u2").tobytes() + new[places].tobytes()
    return delta


def decoded(base: memoryview, read: Callable[[int], bytes]) -> bytes | memoryview:
    """A chunk of the bundle from that of the base, of the same length, and its delta: `read`
    returns exactly so many bytes of it, or raises.

    Raises `TransferFailed` for what is no delta of such a chunk.
    """
    import numpy as np

    first = read(4)
    if first == WHOLE:
        return read(len(base))
    blocks = _blocks(len(base))
    counts = np.frombuffer(first + read(4 * (blocks - 1)), "<u4")
    if len(base) % 2 or counts.max() > _BLOCK:
        raise TransferFailed("malformed delta: it does not fit the bundle")
    total = int(counts.sum())
    within = np.frombuffer(read(2 * total), "<u2")
    places = np.repeat(np.arange(blocks, dtype=np.int64) * _BLOCK, counts) + within
    if total and int(places.max()) >= len(base) // 2:
        raise TransferFailed("malformed delta: it reaches beyond the bundle")
    words = _words(base).copy()
    words[places] = np.frombuffer(read(2 * total), "<u2")
    return memoryview(words.view(np.uint8))


def _words(data: memoryview) -> Any:
    """uint16 [N], without the last byte of an odd number."""
    import numpy as np

    return np.frombuffer(data, "<u2", len(data) // 2)


def _blocks(nbytes: int) -> int:
    return max(1, -(-nbytes // (2 * _BLOCK)))
