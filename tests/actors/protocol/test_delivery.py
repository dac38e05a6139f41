"""Deliveries that are tried again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from spotlight.actors.protocol.delivery import insist, until_transferred
from spotlight.actors.protocol.down import Receipt
from spotlight.errors import AskTimeout, TransferFailed
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


class Asker:
    """An actor whose receiver asks for more time until so late, is then away once, and takes it."""

    def __init__(self, until_s: float) -> None:
        self._until = asyncio.get_running_loop().time() + until_s
        self._was_away = False

    async def ask(self, *_: object, **__: object) -> Receipt:
        if asyncio.get_running_loop().time() < self._until:
            return Receipt(0, ask_again=True)
        if not self._was_away:
            self._was_away = True
            raise AskTimeout("no answer")
        return Receipt(1)


async def test_a_receiver_that_asks_for_more_time_is_not_away() -> None:
    timings = DeliveryTimings()
    actor: Any = Asker(2 * timings.away_limit_s)
    anybody: Any = object()
    assert await insist(actor, lambda: anybody, Receipt(0), wanted=lambda: True, timings=timings)
