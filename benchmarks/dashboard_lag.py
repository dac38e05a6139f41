"""How much later a coordinator's loop gets to its work because ten pages look at a run.

The server is in a thread of this process, as beside a coordinator, and follows a run that grows.
What the loop is late for other reasons, such as the browser on the same cores, is seen on a loop in
a process of its own at the same time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.dashboard_browser import Looked
from benchmarks.dashboard_folders import written_run
from benchmarks.dashboard_loop import lags
from benchmarks.report import quantile
from spotlight.web.page_server import PageServer, PageSettings
from spotlight.web.shown_runs import ShownRuns

PAGES = 10
_ITERATION_S = 0.2
"""A run of the smallest iterations adds a line of metrics this often."""
_LEAST_PRIORITY = 19


async def lag_of_ten_pages(chromium: Any, folder: Path, seconds: float) -> dict[str, Any]:
    """The 99th percentile and the mean of the lag beside ten pages, minus those of a loop apart."""
    run = written_run(folder / "growing", "small", quick=False, finished=False)
    with PageServer(PageSettings(ShownRuns.at(run))) as server:
        async with _growing(run), AsyncExitStack() as pages:
            for _ in range(PAGES):
                await pages.enter_async_context(_page(chromium, server.url))
            _make_way()
            watched, apart = await asyncio.gather(lags(seconds), _lags_apart(seconds))
    lag = quantile(watched, 0.99) - quantile(apart, 0.99)
    mean = sum(watched) / len(watched) - sum(apart) / len(apart)
    return {"lag_ms": round(1000 * lag, 2), "lag_mean_ms": round(1000 * mean, 2)}


async def _lags_apart(seconds: float) -> list[float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.dashboard_loop", str(seconds), stdout=PIPE
    )
    said, _ = await process.communicate()
    found: list[float] = json.loads(said)
    return found


@asynccontextmanager
async def _page(chromium: Any, url: str) -> AsyncIterator[None]:
    context = await chromium.new_context()
    await Looked(await context.new_page()).open(url)
    yield
    await context.close()


@asynccontextmanager
async def _growing(run: Path) -> AsyncIterator[None]:
    """Add iterations to the run while the context lasts."""

    async def grow() -> None:
        path = run / "metrics.jsonl"
        lines = path.read_bytes().splitlines()
        line = msgspec.json.decode(next(each for each in reversed(lines) if b"reward_mean" in each))
        while True:
            await asyncio.sleep(_ITERATION_S)
            line["iteration"] += 1
            for field in ("time_s", "at"):
                line[field] += _ITERATION_S
            with path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")

    task = asyncio.create_task(grow())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _make_way() -> None:
    """Browsers are on other machines; here they get what the others leave."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.nice(_LEAST_PRIORITY)
