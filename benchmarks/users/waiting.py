"""Waits until something is so; no case waits for longer."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.users.case import require

LIMIT_S = 240.0


def until(true: Callable[[], bool], what: str) -> None:
    """Poll until something is so. Raises `Wrong` after a limit that only a hang exceeds."""
    deadline = time.monotonic() + LIMIT_S
    while not true():
        require(time.monotonic() < deadline, f"waited too long for {what}")
        time.sleep(0.05)
