"""Who is refused again and again does not fill the operator's log."""

from __future__ import annotations

import asyncio
import random

import pytest
from structlog.testing import capture_logs

from spotlight.actors.coordinator.key_ring import KeyRing
from spotlight.actors.protocol.door import Enroll, NotEnrolled
from spotlight.transport.control import KeyPair
from spotlight_simulation.memory_network import MemoryNetwork

pytestmark = pytest.mark.virtual_time


async def test_refusals_are_a_line_a_second_with_how_many_were_left_out() -> None:
    transport = MemoryNetwork(random.Random(1)).transport("coordinator")
    ring = KeyRing(
        transport, clock=lambda: 1_800_000_000.0, random_bytes=random.Random(2).randbytes
    )
    used_up = ring.new_token("node", "spot", uses=1)
    joiner = f"tcp://127.0.0.1:1/{used_up.keys.public}"
    ring.enroll(joiner, Enroll("first", KeyPair.new().public))
    with capture_logs() as lines:
        for second in range(3):
            await asyncio.sleep(1.0)
            for number in range(100):
                request = Enroll(f"late-{second}-{number}", KeyPair.new().public)
                assert isinstance(ring.enroll(joiner, request), NotEnrolled)
    told = [line for line in lines if line["event"] == "node_not_enrolled"]
    assert [line["unlogged"] for line in told] == [0, 99, 99]
