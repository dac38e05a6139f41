"""Two workers whose steps and uploads can be held, for the tests of commits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from member_kit import (
    PERSISTENT,
    Gate,
    SlowSink,
    Tensors,
    Worker,
    one_thread,
    tiny_weights,
    two_workers,
)
from scorer_kit import use_scorer

from spotlight.timings import Timings

__all__ = ["gate", "quiet", "sink", "timings", "weights", "workers"]
"""The fixtures."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def weights() -> Tensors:
    return tiny_weights()


@pytest.fixture
def timings() -> Timings:
    """Of the workers; a test that needs others names them."""
    return PERSISTENT


@pytest.fixture
async def workers(
    weights: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timings: Timings
) -> AsyncIterator[tuple[Worker, Worker]]:
    use_scorer(monkeypatch)
    async with two_workers(weights, tmp_path / "store", timings) as pair:
        yield pair


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> SlowSink:
    return SlowSink(monkeypatch)
