"""What tests of the coordinator begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runtime_kit import Cluster
from town_kit import Town


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    """A coordinator with a reserved and a spot node; some files have a town of their own."""
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        await town.join("reserved", "reserved")
        await town.join("spot", "spot")
        yield town
