"""A town that nobody has joined yet, and the two nodes that most jobs have."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime_kit import Cluster
from town_kit import Town

__all__ = ["town"]
"""The fixtures."""


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        yield town


async def with_nodes(town: Town) -> Town:
    await town.join("reserved", "reserved")
    await town.join("spot", "spot")
    return town
