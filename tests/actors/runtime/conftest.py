"""What tests of messages begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from runtime_kit import Cluster, Pair


@pytest.fixture(params=["local", "codec", "network"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with Cluster(force_codec=request.param == "codec") as cluster:
        here = await cluster.system("here")
        there = await cluster.system("there") if request.param == "network" else here
        yield Pair(cluster, here, there)
