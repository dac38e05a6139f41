"""Watching notice sources in a test: `async with watching(source) as told: await told.next()`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from spotlight.cloud.notices import Notice, NoticeBook, NoticeSource, watch_notices


class Told:
    """What a node was told so far, and the counters."""

    def __init__(self) -> None:
        self.book = NoticeBook()
        self._notices: asyncio.Queue[Notice] = asyncio.Queue()

    async def next(self) -> Notice:
        """The next notice; waits for it."""
        return await self._notices.get()

    def nothing_more(self) -> bool:
        """Whether all that came has been looked at."""
        return self._notices.empty()

    async def collect(self, *sources: NoticeSource) -> None:
        async with aclosing(watch_notices(sources, self.book)) as notices:
            async for notice in notices:
                self._notices.put_nowait(notice)


@asynccontextmanager
async def watching(*sources: NoticeSource) -> AsyncIterator[Told]:
    told = Told()
    task = asyncio.create_task(told.collect(*sources))
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
