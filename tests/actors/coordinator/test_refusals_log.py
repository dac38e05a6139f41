"""Who is refused again and again does not fill the operator's log."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from runtime_kit import Cluster
from structlog.testing import capture_logs
from town_kit import Town

from spotlight.actors.coordinator.key_ring import REFUSALS_LOG_S, KeyRing
from spotlight.actors.protocol.door import Enroll, NotEnrolled
from spotlight.transport.control import KeyPair
from spotlight_simulation.memory_network import MemoryNetwork

pytestmark = pytest.mark.virtual_time


async def refused_again_and_again(times: int, *, under_other_names: bool) -> list[Any]:
    """The lines of so many refusals, two a second."""
    transport = MemoryNetwork(random.Random(1)).transport("coordinator")
    ring = KeyRing(
        transport, clock=lambda: 1_800_000_000.0, random_bytes=random.Random(2).randbytes
    )
    used_up = ring.new_token("node", "spot", uses=1)
    joiner = f"tcp://127.0.0.1:1/{used_up.keys.public}"
    ring.enroll(joiner, Enroll("first", KeyPair.new().public))
    with capture_logs() as lines:
        for number in range(times):
            await asyncio.sleep(0.5)
            name = f"late-{number}" if under_other_names else "late"
            request = Enroll(name, KeyPair.new().public)
            assert isinstance(ring.enroll(joiner, request), NotEnrolled)
    return [line for line in lines if line["event"] == "node_not_enrolled"]


async def test_a_node_that_is_refused_again_and_again_is_a_line_with_how_often() -> None:
    times = int(2 * REFUSALS_LOG_S) + 10
    told = await refused_again_and_again(times, under_other_names=False)
    assert [(line["node"], line["unlogged"]) for line in told] == [
        ("late", 0),
        ("late", int(2 * REFUSALS_LOG_S) - 1),
    ]


async def test_names_that_nobody_has_heard_of_do_not_fill_the_log() -> None:
    told = await refused_again_and_again(int(2 * REFUSALS_LOG_S), under_other_names=True)
    assert len(told) < 1100


async def test_a_process_that_calls_itself_a_node_and_is_none_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        await town.join("n", "spot")
        with capture_logs() as lines:
            await town.join("n", "spot", process="another")
            await asyncio.sleep(30.0)
    told = [line for line in lines if line["event"] == "node_refused"]
    assert [line["node"] for line in told] == ["n"]
