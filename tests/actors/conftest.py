"""What tests of several actors begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from desk_kit import Desk
from runtime_kit import Cluster


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A dispatcher with its journal, and workers that say what they are told to."""
    async with Cluster() as cluster:
        desk = Desk(cluster, tmp_path / "journal.records")
        await desk.open()
        yield desk
        desk.file.close()
