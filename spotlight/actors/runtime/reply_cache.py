"""Remembers the latest answers to asks from other processes, so that a duplicate of an ask does not
run twice."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

AskKey = tuple[str, int, int]
"""Address and incarnation of the asking process, and its correlation id."""

RUNNING: Final = b""


class ReplyCache:
    """The latest `capacity` asks: the frame that answered each, or `RUNNING`."""

    def __init__(self, capacity: int = 1024, greatest_frame: int = 64 * 1024) -> None:
        self._capacity = capacity
        self._greatest_frame = greatest_frame
        self._answers: OrderedDict[AskKey, bytes] = OrderedDict()

    def lookup(self, key: AskKey) -> bytes | None:
        """The frame that answered an ask, `RUNNING` while it has none, None when the ask is not
        known."""
        return self._answers.get(key)

    def begin(self, key: AskKey) -> None:
        """An ask was accepted."""
        self._answers[key] = RUNNING
        if len(self._answers) > self._capacity:
            self._answers.popitem(last=False)

    def finish(self, key: AskKey, frame: bytes) -> None:
        """An ask was answered. Large answers are not kept: a late duplicate of such an ask runs
        again."""
        if key not in self._answers:
            return
        if len(frame) <= self._greatest_frame:
            self._answers[key] = frame
        else:
            del self._answers[key]
