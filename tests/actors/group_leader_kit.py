"""A leader that is up, for its tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from leader_kit import Crew
from runtime_kit import Cluster

__all__ = ["crew"]
"""The fixtures."""


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    async with Cluster() as cluster:
        crew = Crew()
        await crew.open(cluster)
        yield crew
