"""The page of a run in a real Chromium: its size, how soon it shows, and what watching costs.

    python -m benchmarks.dashboard [--json] [--quick] [--minutes N]

What is sent at 50 changes a second is made up (`dashboard_site`); the large run, the ten pages and
the reports are of `spotlight dashboard` and of run folders as `large_run` writes them.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.dashboard_browser import Looked, browser, what_is_missing
from benchmarks.dashboard_folders import report_sizes, written_run
from benchmarks.dashboard_lag import lag_of_ten_pages
from benchmarks.dashboard_server import served_run
from benchmarks.dashboard_site import Site
from benchmarks.dashboard_views import Kind, made_up_view
from benchmarks.report import Report

PER_S = 50.0
FOLLOWED_S = 600.0
QUICK_S = 3.0
_SETTLING = 0.1
"""The heap is measured first after this share of the time: by then all parts were drawn once."""
_PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}

Figures = dict[str, Any]


async def opening(chromium: Any, times: int) -> Figures:
    """What the page weighs, and how soon it shows a small run."""
    kind = Kind(reserved=1, spot=2, per_node=1)
    shown: list[float] = []
    nbytes = 0
    async with Site({"small": made_up_view(kind)}).served() as url:
        for _ in range(times):
            context = await chromium.new_context()
            looked = Looked(await context.new_page())
            answers: list[Any] = []
            looked.page.on("response", lambda answer, to=answers: to.append(answer))
            await looked.open(url)
            shown.append(await looked.shown_ms())
            nbytes = sum([len(await each.body()) for each in answers if _is_of_page(each.url)])
            await context.close()
    return {"page_kb": round(nbytes / 1000, 1), "paint_ms": round(statistics.median(shown))}


async def sideways(chromium: Any) -> Figures:
    """By how many pixels the page is wider than a phone."""
    async with Site({"run": made_up_view(Kind())}).served() as url:
        context = await chromium.new_context(**_PHONE)
        looked = Looked(await context.new_page())
        await looked.open(url)
        wide = await looked.page.evaluate("document.documentElement.scrollWidth")
        await context.close()
    return {"sideways_px": wide - 390}


async def following(chromium: Any, seconds: float) -> Figures:
    """What is dropped of 50 changes a second, and by how much the page's memory grows."""
    site = Site({"run": made_up_view(Kind())}, PER_S)
    async with site.served() as url:
        context = await chromium.new_context()
        looked = Looked(await context.new_page())
        await looked.open(url)
        await looked.page.mouse.wheel(0, 400)
        await asyncio.sleep(seconds * _SETTLING)
        before = await looked.heap()
        await asyncio.sleep(seconds * (1 - _SETTLING))
        growth = await looked.heap() - before
        site.per_s = 0
        await asyncio.sleep(1)
        counts = await looked.counts()
        await context.close()
    if looked.problems:
        raise RuntimeError(f"the page has problems: {looked.problems[:3]}")
    return {
        "updates_sent": site.sent,
        "updates_dropped": site.sent - counts["changes"] + counts["missed"],
        "page_growth_mb": round(growth / 1e6, 2),
    }


async def large(chromium: Any, folder: Path, times: int) -> Figures:
    """How soon all of a run of many workers and iterations is shown, from its folder, and the
    server's peak memory; the first time with a server that has just started."""
    done = sum(b"reward_mean" in line for line in (folder / "metrics.jsonl").open("rb"))
    all_of_it = f"{done:,} of {done:,}"
    shown: list[float] = []
    async with served_run(folder) as server:
        for _ in range(times):
            context = await chromium.new_context()
            looked = Looked(await context.new_page())
            await looked.open(server.url)
            # Of a run that takes long to read, the page shows the beginning first.
            await looked.page.locator(f".facts:has-text('iteration {all_of_it}')").wait_for()
            shown.append(await looked.page.evaluate("performance.now()"))
            await context.close()
        peak = server.peak_mb()
    return {
        "open_ms_large": round(shown[0]),
        "open_again_ms_large": round(statistics.median(shown[1:] or shown)),
        "server_mb": round(peak, 1),
    }


def _is_of_page(url: str) -> bool:
    return "/static/" in url or url.split("?")[0].endswith("/")


async def measure(report: Report, quick: bool, seconds: float) -> None:
    """Take all figures, one after the other."""
    with tempfile.TemporaryDirectory(prefix="spotlight-dashboard-") as name:
        folder = Path(name)
        async with browser() as chromium:
            steps: list[tuple[str, Callable[[], Awaitable[Figures]]]] = [
                ("opening", lambda: opening(chromium, 1 if quick else 5)),
                ("a phone", lambda: sideways(chromium)),
                ("a large run", lambda: _large(chromium, folder, quick)),
                ("ten pages", lambda: lag_of_ten_pages(chromium, folder, 1.5 if quick else 30)),
                (f"{seconds:g} s of changes", lambda: following(chromium, seconds)),
            ]
            for what, step in steps:
                report.note(what)
                report.add(await step())
        report.note("reports")
        report.add(report_sizes(folder, quick=quick))


async def _large(chromium: Any, folder: Path, quick: bool) -> Figures:
    run = written_run(folder / "wide", "wide", quick=quick)
    return await large(chromium, run, 1 if quick else 3)


def main() -> None:
    """Run the benchmark."""
    report = Report("dashboard", __doc__, minutes=13, proviso="; it needs Chromium and Playwright")
    given = report.begin()
    if missing := what_is_missing():
        sys.exit(f"dashboard: {missing}")
    seconds = QUICK_S if given.quick else FOLLOWED_S * min(1.0, (given.minutes or 13) / 13)
    asyncio.run(measure(report, given.quick, seconds))
    report.finish()


if __name__ == "__main__":
    main()
