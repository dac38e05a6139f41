"""Preemption notices of all sources of a machine, as one stream.

Each source is read in a task of its own. A source that fails is read again with growing pauses,
says so in the log, and neither withdraws what it announced nor holds up the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import structlog

from spotlight.errors import SpotlightError
from spotlight.policies.notices import Announcement, Notice, NoticeBook

__all__ = ["Announcement", "Notice", "NoticeBook", "NoticeSource", "SourceFailed", "watch_notices"]

log = structlog.get_logger(__name__)

_LONGEST_PAUSE_S = 5.0  # the shortest notices are 30 s: a source that is back must be heard in time


class SourceFailed(SpotlightError):
    """A notice source could not be read, or says what its platform never says. It is read again."""


class NoticeSource(Protocol):
    """One place where notices appear."""

    @property
    def name(self) -> str:
        """What logs and counters call it."""

    @property
    def poll_s(self) -> float:
        """Seconds to pause between two readings."""

    async def read(self) -> Sequence[Announcement]:
        """All events that are announced now; may wait for a change first, but never in the first
        reading of a platform's state.

        Raises `SourceFailed`, within a bounded time, when that cannot be known.
        """


async def watch_notices(
    sources: Sequence[NoticeSource], book: NoticeBook
) -> AsyncGenerator[Notice, None]:
    """Yield what the node must know, as it becomes known, until closed (`contextlib.aclosing`).

    The latest notice holds: `preempt` with the nearest deadline of all that stand, `advise` when
    nothing worse stands, `cancel` when what was told before is withdrawn. `book` keeps the counts.
    """
    changed = asyncio.Event()
    watchers = [
        asyncio.create_task(_watch(source, book, changed), name=f"notices-{source.name}")
        for source in sources
    ]
    try:
        while True:
            await changed.wait()
            changed.clear()
            for notice in book.turn():
                yield notice
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)


async def _watch(source: NoticeSource, book: NoticeBook, changed: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        try:
            announcements = await source.read()
        except Exception as error:  # whatever is wrong with one source must not blind the node
            failures += 1
            if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...: visible, not flooding
                unexpected = not isinstance(error, SourceFailed)
                log.warning(
                    "notice_source_failing",
                    source=source.name,
                    reason=str(error) or type(error).__name__,
                    failures=failures,
                    exc_info=unexpected,
                )
        else:
            if failures:
                log.info("notice_source_recovered", source=source.name, failures=failures)
            failures = 0
            for news in book.observe(source.name, announcements, loop.time()):
                log.warning(
                    "notice_seen",
                    source=news.source,
                    kind=news.kind,
                    event_id=news.event_id,
                    lead_s=news.lead_s,
                    notice_seen_total=book.seen[news.source],
                )
                changed.set()
        await asyncio.sleep(_pause_s(source.poll_s, failures))


def _pause_s(poll_s: float, failures: int) -> float:
    return min(poll_s * 2.0 ** min(failures, 10), max(poll_s, _LONGEST_PAUSE_S))
