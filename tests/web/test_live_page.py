"""The page in a real browser: it shows a run, follows it, and can be used without a mouse."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.dashboard_browser import Looked, browser, what_is_missing
from benchmarks.dashboard_site import POLICY, Site
from benchmarks.dashboard_views import LARGE, PROMPTS, Kind, made_up_view
from spotlight.report.frozen_page import frozen_page

pytestmark = pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())
KIND = Kind(done=60, iterations=80, versions=4)
OTHER = Kind(name="ocr-other", done=40, seed=2, outcome="finished", versions=3)


@pytest.fixture
async def chromium() -> AsyncIterator[Any]:
    async with browser() as started:
        yield started


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    runs = {"ocr-001": made_up_view(KIND), "ocr-002": made_up_view(OTHER)}
    site = Site(runs)
    async with site.served():
        yield site


@pytest.fixture
async def looked(chromium: Any, site: Site) -> AsyncIterator[Looked]:
    """A page, on which nothing may go wrong; it is closed before the site is."""
    context = await chromium.new_context(viewport={"width": 1280, "height": 900})
    looked = Looked(await context.new_page())
    yield looked
    await context.close()
    assert looked.problems == []


async def opened(looked: Looked, site: Site, run: str = "ocr-001") -> Any:
    await looked.open(f"{site.url}?run={run}")
    return looked.page


async def seen(page: Any, part: str) -> Any:
    """A part, scrolled to, once it is drawn."""
    await page.locator(part).scroll_into_view_if_needed()
    return page.locator(part)


async def test_it_shows_a_run_in_figures_and_words(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    text = await page.locator("main").inner_text()
    for part in ("ocr-tiny", "iteration 60 of 80", "0.309 → 0.754", "Did exploration pay here?"):
        assert part in text
    assert await page.locator(".connection").inner_text() == "live"


async def test_curves_are_drawn_against_what_is_chosen(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    plot = (await seen(page, "#curves")).locator(".plot").first
    assert "against dollars" in await plot.get_attribute("aria-label")
    await page.get_by_label("iterations", exact=True).check()
    assert "against iterations" in await plot.get_attribute("aria-label")


async def test_an_unpriced_run_says_so_and_shows_no_zero(looked: Looked, site: Site) -> None:
    site.add("free", made_up_view(dataclasses.replace(KIND, is_priced=False)))
    page = await opened(looked, site, "free")
    assert await page.get_by_label("dollars").is_disabled()
    text = await page.locator("main").inner_text()
    assert "unpriced" in text
    assert "$0" not in text


async def test_a_drag_across_a_chart_zooms_all_of_them(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    await seen(page, "#curves")
    box = await page.locator("#curves .u-over").first.bounding_box()
    await page.mouse.move(box["x"] + 200, box["y"] + 50)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 400, box["y"] + 50, steps=4)
    await page.mouse.up()
    whole = page.locator("#curves").get_by_role("button", name="Whole run")
    assert await whole.is_enabled()
    await whole.click()
    assert await whole.is_disabled()


async def test_a_zoom_into_time_asks_for_more_of_it(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    box = await (await seen(page, ".area canvas >> nth=0")).bounding_box()
    await page.mouse.move(box["x"] + 300, box["y"] + 40)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 600, box["y"] + 40, steps=4)
    async with page.expect_response("**/time?from_s=*"):
        await page.mouse.up()
    assert "the whole run" not in await page.locator("#pools .readout").inner_text()


async def test_time_is_zoomed_with_the_keyboard(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    await (await seen(page, ".lanes")).focus()
    readout = page.locator("#pools .readout")
    await page.keyboard.press("+")
    assert "the whole run" not in await readout.inner_text()
    before = await readout.inner_text()
    await page.keyboard.press("ArrowRight")
    assert await readout.inner_text() != before
    await page.keyboard.press("0")
    assert "the whole run" in await readout.inner_text()


async def test_the_cursor_of_the_curves_moves_by_keyboard(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    await (await seen(page, ".plot >> nth=0")).focus()
    await page.keyboard.press("Home")
    assert (await page.locator("#curves .readout").inner_text()).startswith("Iteration 1 ·")
    await page.keyboard.press("ArrowRight")
    assert (await page.locator("#curves .readout").inner_text()).startswith("Iteration 2 ·")


async def test_a_picture_opens_at_full_size_and_arrows_go_on(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    thumb = (await seen(page, "#pictures")).locator(".thumb").first
    await thumb.focus()
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    assert "weights v0" in await dialog.inner_text()
    await page.keyboard.press("ArrowRight")
    assert "weights v20" in await dialog.inner_text()
    assert "/pictures/" in await dialog.locator("img").get_attribute("src")
    await page.keyboard.press("Escape")
    assert not await dialog.is_visible()
    assert await thumb.evaluate("node => node === document.activeElement")


async def test_html_in_a_prompt_is_text(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    await seen(page, "#pictures")
    await page.get_by_text(PROMPTS[-1]).first.wait_for()
    assert await page.locator("main img[onerror]").count() == 0


async def test_changes_are_shown_and_only_they(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    job = site.runs["ocr-001"]["job"]
    site.change("ocr-001", {"job": job | {"iteration": 61}})
    rows = site.runs["ocr-001"]["rows"]
    site.change("ocr-001", {"rows_from": len(rows), "rows": [[61, *rows[-1][1:]]]})
    await page.get_by_text("iteration 61 of 80").wait_for()
    assert (await looked.counts())["changes"] == 2


async def test_a_lost_connection_is_said_and_found_again(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    site.refuses = "the server is being restarted"
    site.drop()
    await page.get_by_text("Connection lost").wait_for()
    await page.get_by_text("the server is being restarted").wait_for()
    site.refuses = ""
    await page.locator(".connection[data-state=live]").wait_for()
    assert any("503" in problem for problem in looked.problems)
    looked.problems.clear()  # the browser itself writes of refused requests


async def test_a_run_that_cannot_be_shown_yet_is_one_line_that_says_why(
    looked: Looked, site: Site
) -> None:
    site.refuses = "the run takes too long to read"
    await looked.page.goto(f"{site.url}?run=ocr-001")
    await looked.page.get_by_text("cannot be shown yet: the run takes too long to read").wait_for()
    assert await looked.page.locator("section").count() == 0
    site.refuses = ""
    await looked.page.get_by_role("heading", name="ocr-tiny").wait_for()
    looked.problems.clear()  # the browser itself writes of refused requests


async def test_a_run_that_has_ended_says_so(looked: Looked, site: Site) -> None:
    page = await opened(looked, site, "ocr-002")
    assert await page.locator(".connection").inner_text() == "ended"
    assert "spotlight resume ocr-002" in await page.locator("#commands").inner_text()


async def test_several_runs_are_listed(looked: Looked, site: Site) -> None:
    await looked.open(site.url)
    await looked.page.get_by_role("link", name="ocr-002").click()
    await looked.page.get_by_role("heading", name="ocr-other").wait_for()


async def test_two_runs_are_compared(looked: Looked, site: Site) -> None:
    page = await opened(looked, site)
    await page.get_by_label("Compare with").select_option("ocr-002")
    table = page.locator("#comparison")
    await table.wait_for()
    assert "40 of 400" in await table.inner_text()
    await page.get_by_text("Dashed: ocr-002").wait_for()


async def test_a_command_is_copied(looked: Looked, site: Site) -> None:
    await looked.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await opened(looked, site)
    await page.get_by_role("button", name="Copy spotlight cancel").click()
    await page.get_by_text("Copied").wait_for()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == "spotlight cancel j-0017"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_scrolls_down_only(chromium: Any, site: Site, scheme: str) -> None:
    context = await chromium.new_context(
        viewport={"width": 390, "height": 844}, color_scheme=scheme, is_mobile=True, has_touch=True
    )
    looked = Looked(await context.new_page())
    page = await opened(looked, site)
    await page.get_by_label("Compare with").select_option("ocr-002")
    await seen(page, "footer")
    assert await page.evaluate("document.documentElement.scrollWidth") == 390
    await context.close()
    assert looked.problems == []


async def test_a_report_is_the_page_and_asks_nobody(looked: Looked, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(frozen_page(made_up_view(LARGE), tmp_path))
    asked: list[str] = []
    looked.page.on("request", lambda request: asked.append(request.url))
    await looked.open(file.as_uri())
    await seen(looked.page, "#pools")
    assert "as of" in await looked.page.locator(".connection").inner_text()
    assert await looked.page.locator("#curves .plot").count() == 7
    assert [url for url in asked if url.startswith("http")] == []


async def test_nothing_on_the_page_breaks_a_strict_policy(looked: Looked, site: Site) -> None:
    assert "unsafe" not in POLICY
    await looked.page.add_init_script(
        "window.broken = []; addEventListener('securitypolicyviolation',"
        " (event) => broken.push(event.violatedDirective));"
    )
    page = await opened(looked, site)
    for part in ("#curves", "#pools", "#pictures", "#bill"):
        await seen(page, part)
    assert json.dumps(await page.evaluate("broken")) == "[]"
