"""Decides which of many similar log lines are written.

What is tried, refused or lost again and again is a line once in a while, with how many were left
out since the one before. `LimitedLog` is the log for all of that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from typing import Any

_KEPT_KEYS = 1024
_OTHERS = object()
"""The key of all for which there is no room: names of strangers must not fill a log either."""


class LogLimiter:
    """Admits one line for each key and interval, and no more than some thousand in all."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self._admitted_at: dict[Hashable, float] = {}
        self._refused: Counter[Hashable] = Counter()
        self._forgot_at = 0.0

    def admit(self, key: Hashable, now: float) -> int | None:
        """The number of lines left out since the last one if this one may be written, else None."""
        if key not in self._admitted_at and not self._has_room(now):
            key = _OTHERS
        admitted_at = self._admitted_at.get(key)
        if admitted_at is not None and now - admitted_at < self._interval_s:
            self._refused[key] += 1
            return None
        self._admitted_at[key] = now
        return self._refused.pop(key, 0)

    def _has_room(self, now: float) -> bool:
        if len(self._admitted_at) < _KEPT_KEYS:
            return True
        if now - self._forgot_at >= self._interval_s:  # not for every key of a flood
            self._forgot_at = now
            for key, then in list(self._admitted_at.items()):
                if now - then >= self._interval_s and key is not _OTHERS:
                    del self._admitted_at[key]
                    self._refused[_OTHERS] += self._refused.pop(key, 0)
        return len(self._admitted_at) < _KEPT_KEYS


class LimitedLog:
    """A log of what happens again and again: of each event, and of each that it is `about`, one
    line in each interval.

    Args:
        log: the lines go there.
        interval_s: seconds between two lines.
    """

    def __init__(self, log: Any, interval_s: float = 60.0) -> None:
        self._log = log
        self._limiter = LogLimiter(interval_s)

    def info(self, event: str, *, about: Hashable = "", **fields: Any) -> bool:
        """A line of something ordinary; whether it was written."""
        return self.line("info", event, about=about, **fields)

    def warning(self, event: str, *, about: Hashable = "", **fields: Any) -> bool:
        """A line of something that went wrong, and is got over; whether it was written."""
        return self.line("warning", event, about=about, **fields)

    def error(self, event: str, *, about: Hashable = "", **fields: Any) -> bool:
        """A line of something that somebody should look at; whether it was written."""
        return self.line("error", event, about=about, **fields)

    def line(self, level: str, event: str, *, about: Hashable = "", **fields: Any) -> bool:
        """A line of this level; whether it was written."""
        unlogged = self._limiter.admit((event, about), asyncio.get_running_loop().time())
        if unlogged is not None:
            getattr(self._log, level)(event, **fields, unlogged=unlogged)
        return unlogged is not None
