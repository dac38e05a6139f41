"""What differs between two bundles, and back."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotlight.errors import TransferFailed
from spotlight.transport.tensors.deltas import CHUNK, decoded, encoded, size_of_delta

BLOCK_BYTES = 2**17


def random_bytes(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def changed(data: np.ndarray, share: float) -> np.ndarray:
    """So many of its words are others."""
    words = data.copy().view(np.uint16)
    rng = np.random.default_rng(1)
    words[rng.random(words.size) < share] ^= 1
    return words.view(np.uint8)


def reader(data: bytes):
    stream = io.BytesIO(data)

    def read(count: int) -> bytes:
        part = stream.read(count)
        if len(part) < count:
            raise TransferFailed("closed")
        return part

    return read, stream


@pytest.mark.parametrize("nbytes", [2, 3, BLOCK_BYTES, BLOCK_BYTES + 2, CHUNK, CHUNK - 1])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.6, 1.0])
def test_base_and_delta_make_the_bundle(nbytes: int, share: float) -> None:
    base = random_bytes(nbytes)
    bundle = changed(base[: nbytes // 2 * 2], share)
    bundle = np.concatenate([bundle, base[bundle.size :] ^ 1])
    read, stream = reader(encoded(base.data, bundle.data))
    assert bytes(decoded(base.data, read)) == bundle.tobytes()
    assert not stream.read(), "the reader knows where the chunk ends"


@given(st.binary(min_size=1, max_size=64), st.binary(min_size=64, max_size=64))
def test_any_two_chunks_of_a_size_have_a_delta(base: bytes, bundle: bytes) -> None:
    old = np.frombuffer(base, np.uint8)
    new = np.frombuffer(bundle, np.uint8)[: old.size]
    read, _ = reader(encoded(old.data, new.data))
    assert bytes(decoded(old.data, read)) == new.tobytes()


def test_a_delta_is_never_much_larger_than_the_bundle() -> None:
    assert len(encoded(random_bytes(CHUNK).data, random_bytes(CHUNK, seed=1).data)) == CHUNK + 4


def test_a_step_of_an_optimizer_makes_a_small_delta() -> None:
    weights = torch.randn(CHUNK // 2, generator=torch.Generator().manual_seed(0)) * 0.02
    steps = (weights, weights + 1e-6)
    before, after = (each.bfloat16().view(torch.uint8).numpy() for each in steps)
    assert len(encoded(before.data, after.data)) < CHUNK / 10


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
def test_its_size_is_foretold_from_a_small_part(share: float) -> None:
    base = random_bytes(4 * CHUNK)
    bundle = changed(base, share)
    size = sum(
        len(encoded(base[at : at + CHUNK].data, bundle[at : at + CHUNK].data))
        for at in range(0, bundle.size, CHUNK)
    )
    assert size_of_delta(base.data, bundle.data) == pytest.approx(size / bundle.size, rel=0.1)


def test_bundles_of_different_sizes_have_none() -> None:
    assert size_of_delta(random_bytes(10).data, random_bytes(12).data) == float("inf")


@pytest.mark.parametrize(
    "delta",
    [
        np.array([2**32 - 2], "<u4").tobytes(),
        np.array([2**16 + 1], "<u4").tobytes(),
        np.array([1], "<u4").tobytes() + np.array([50, 7], "<u2").tobytes(),
    ],
    ids=["too many", "more than there are", "beyond the end"],
)
def test_what_does_not_fit_is_refused(delta: bytes) -> None:
    read, _ = reader(delta)
    with pytest.raises(TransferFailed, match="malformed delta"):
        decoded(random_bytes(100).data, read)


def test_a_chunk_of_odd_length_comes_whole() -> None:
    read, _ = reader(np.array([1], "<u4").tobytes() + bytes(100))
    with pytest.raises(TransferFailed, match="malformed delta"):
        decoded(random_bytes(99).data, read)
