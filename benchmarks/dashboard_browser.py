"""A real Chromium, through Playwright, as far as both are there."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def what_is_missing() -> str:
    """What has to be installed before a browser can be driven; empty if nothing."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is missing: pip install 'spotlight-rl[browser]'"
    if not any(map(shutil.which, _NAMES)):
        return f"there is no browser; install one of {', '.join(_NAMES)}"
    return ""


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """A browser without a window, while the context lasts."""
    from playwright.async_api import async_playwright

    path = next(filter(None, map(shutil.which, _NAMES)))
    async with async_playwright() as driver:
        # Its sandbox does not work in most containers; it opens nothing but our own pages here.
        started = await driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        try:
            yield started
        finally:
            await started.close()


class Looked:
    """A page that is looked at, with what went wrong on it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        """Errors on the console, exceptions of scripts, and requests that failed or left."""
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    async def open(self, url: str) -> None:
        """Open it, and wait until it shows something."""
        await self.page.goto(url)
        await self.page.wait_for_selector("main[aria-busy=false]")

    async def shown_ms(self) -> float:
        """How long after the navigation it showed the run."""
        found: float = await self.page.evaluate(
            "performance.getEntriesByName('spotlight-shown')[0].startTime"
        )
        return found

    async def heap(self) -> int:
        """Bytes of its heap after what is garbage was collected."""
        session = await self.page.context.new_cdp_session(self.page)
        await session.send("HeapProfiler.collectGarbage")
        used: int = (await session.send("Runtime.getHeapUsage"))["usedSize"]
        await session.detach()
        return used

    async def counts(self) -> dict[str, int]:
        """What it has counted of what it was sent."""
        found: dict[str, int] = await self.page.evaluate("Spotlight.counts")
        return found
