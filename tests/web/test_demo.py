"""The recorded run that ships with the package."""

from __future__ import annotations

from spotlight.cli.dashboard import DEMO
from spotlight.report.run_view import RunView
from spotlight.report.view_building import view_of
from tests.web.page_kit import serving

LARGEST = 330_000
"""Bytes of all its files together."""


def demo() -> RunView:
    (run,) = DEMO.iterdir()
    return view_of(run)


def test_it_is_small() -> None:
    files = [file for file in DEMO.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= LARGEST


def test_it_shows_what_a_run_has() -> None:
    view = demo()
    assert view.job.outcome == "finished"
    assert view.money.spent
    assert view.validation.latest
    assert view.rows
    assert view.areas.pools
    assert view.lanes
    assert view.pictures.wall
    assert view.notes == ()


async def test_all_its_pictures_are_there() -> None:
    pictures = demo().pictures
    rows = (*pictures.wall, pictures.best, pictures.worst)
    async with serving(DEMO) as (_, page):
        ((_, (run,)),) = [await page.get("api/runs")]
        for path in {path for row in rows for one in row for path in (one.thumb, one.full) if path}:
            assert (await page.get(f"files/{run['name']}/{path}"))[0] == 200, path
