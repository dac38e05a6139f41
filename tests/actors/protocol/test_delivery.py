"""Deliveries that are tried again."""

from __future__ import annotations

import pytest
import structlog

from spotlight.actors.protocol.delivery import until_transferred
from spotlight.errors import TransferFailed
from spotlight.timings import DeliveryTimings

pytestmark = pytest.mark.virtual_time


async def test_a_transfer_that_is_tried_again_and_again_is_logged_once_a_minute() -> None:
    attempts = 0

    async def attempt() -> int:
        nonlocal attempts
        attempts += 1
        if attempts <= 90:
            raise TransferFailed("put state/0-0 failed: connection refused")
        return attempts

    timings = DeliveryTimings()
    with structlog.testing.capture_logs() as logs:
        assert await until_transferred(attempt, "state/0-0", timings=timings) == 91
    told = [line["unlogged"] for line in logs if line["event"] == "transfer_again"]
    assert told[0] == 0
    assert len(told) <= 2 + 90 * timings.retry_pause_s / 60
