"""What tests of a whole node begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runtime_kit import Cluster
from site_kit import Site

REPORT_S = 110.0
"""It reports only when it has something to say, so that its reports can be counted."""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Cluster() as cluster:
        site = Site()
        await site.open(cluster, tmp_path, workers=2, report_s=REPORT_S)
        yield site
        await site.store.aclose()


@pytest.fixture
async def warm(site: Site) -> Site:
    """Two workers, joined."""
    await site.up("n/0")
    await site.up("n/1")
    return site
