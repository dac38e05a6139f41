"""Two batches, and a crew of members that denoise them over real gloo groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from group_kit import (
    Crewman,
    GroupCrew,
    Steps,
    Tensors,
    alone,
    open_crew,
    quiet_process,
    tiny_models,
    trainable,
    wanted,
)
from runtime_kit import Cluster

from spotlight.actors.protocol.up import ReturnLease
from spotlight.diffusion.model import DiffusionModel
from spotlight.timings import Timings

__all__ = ["crew", "expected", "models", "quiet", "steps", "timings", "weights"]
"""The fixtures."""

BATCH = wanted(1, 2, 3)
OTHER = wanted(4, 5)


def returned(worker: Crewman, lease: int) -> ReturnLease:
    """What a worker says that gives a batch back."""
    return ReturnLease(worker.name, 1, lease)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_process():
        yield


@pytest.fixture(scope="module")
def models() -> list[DiffusionModel]:
    return tiny_models(4)


@pytest.fixture(scope="module")
def weights(models: list[DiffusionModel]) -> Tensors:
    return trainable(models[0])


@pytest.fixture(scope="module")
def expected(models: list[DiffusionModel], weights: Tensors) -> Tensors:
    return alone(models[0], weights, BATCH)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    steps = Steps(monkeypatch)
    yield steps
    steps.go_on()


@pytest.fixture
def timings() -> Timings:
    """Of the crew; a test that needs others names them."""
    return Timings()


@pytest.fixture
async def crew(
    tmp_path: Path,
    steps: Steps,
    models: list[DiffusionModel],
    weights: Tensors,
    monkeypatch: pytest.MonkeyPatch,
    timings: Timings,
) -> AsyncIterator[GroupCrew]:
    async with Cluster() as cluster:
        crew = await open_crew(cluster, tmp_path / "store", models, weights, monkeypatch, timings)
        yield crew
        steps.go_on()
        assert all(worker.is_there() for worker in crew.workers), "a member crashed"
        await crew.part()
        await crew.close()
