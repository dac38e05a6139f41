"""Decides which of many similar log lines are written."""

from __future__ import annotations

from collections import Counter

_KEPT_KEYS = 1024


class LogLimiter:
    """Admits one line for each key and interval."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self._admitted_at: dict[str, float] = {}
        self._refused: Counter[str] = Counter()

    def admit(self, key: str, now: float) -> int | None:
        """The number of lines left out since the last one if this one may be written, else None."""
        admitted_at = self._admitted_at.get(key)
        if admitted_at is not None and now - admitted_at < self._interval_s:
            self._refused[key] += 1
            return None
        if len(self._admitted_at) >= _KEPT_KEYS:
            self._admitted_at.clear()
            self._refused.clear()
        self._admitted_at[key] = now
        return self._refused.pop(key, 0)
