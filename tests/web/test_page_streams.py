"""What those who look at a run are told of it while it goes on."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from spotlight.report.run_view import RunView
from spotlight.web import broadcasting
from spotlight.web.watched_run import WatchedRun
from tests.web.page_kit import WrittenRun, serving


async def test_a_page_gets_the_whole_view_and_then_what_changes(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs" / "a")
    run.iterate(2)
    async with serving(run.folder.parent) as (_, page), page.stream("a") as stream:
        name, first, view = await stream.next()
        assert name == "view"
        assert view["job"]["iteration"] == 2
        run.iterate()
        name, second, change = await stream.next()
        assert first is not None
        assert (name, second) == ("change", first + 1)
        assert change["rows_from"] == 2
        assert len(change["rows"]) == 1
        assert change["job"]["iteration"] == 3


async def test_the_view_by_itself_is_that_of_the_stream(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs" / "a")
    run.iterate(3)
    async with serving(run.folder.parent) as (_, page), page.stream("a") as stream:
        assert (await stream.next())[2] == await page.view("a")


async def test_two_viewers_share_one_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    class Counted(WatchedRun):
        def __init__(self, folder: Path) -> None:
            made.append(folder)
            super().__init__(folder)

    monkeypatch.setattr(broadcasting, "WatchedRun", Counted)
    run = WrittenRun(tmp_path / "runs" / "a")
    async with (
        serving(run.folder.parent) as (_, page),
        page.stream("a") as one,
        page.stream("a") as other,
    ):
        run.iterate()
        assert (await one.until(iteration=1))["rows"] == (await other.until(iteration=1))["rows"]
    assert made == [run.folder]


async def test_a_viewer_who_takes_nothing_gets_the_view_anew(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs" / "a")
    broadcasts = broadcasting.Broadcasts()
    async with broadcasts.viewing(run.folder) as (_, viewing):
        told = [await viewing.next(10)]
        for count in range(1, broadcasting.MOST_WAITING + 3):
            run.iterate()
            while (  # noqa: ASYNC110 - a file that is read by and by
                broadcasts.told_anew == 0 and await page_of(broadcasts, run) < count
            ):
                await asyncio.sleep(0.01)
        told.append(await viewing.next(10))
        assert [b"event: view" in each for each in told] == [True, True]
        assert broadcasts.told_anew == 1
        run.iterate()
        assert b"event: change" in await viewing.next(10)
    await ended(broadcasts)


async def test_a_run_that_is_written_in_halves_is_shown_by_whole_lines(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs" / "a")
    run.append("metrics.jsonl", '{"kind":"iteration","iteration":0,"ti', end="")
    async with serving(run.folder.parent) as (_, page), page.stream("a") as stream:
        assert (await stream.next())[2]["job"]["iteration"] == 0
        run.append("metrics.jsonl", 'me_s":1.5,"reward_mean":0.25}')
        view = await stream.until(iteration=1)
        assert view["rows"][0][1] == 1.5


async def test_a_line_that_is_damaged_keeps_nobody_from_the_rest(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs" / "a")
    run.append("metrics.jsonl", "\x00\x00 not a record")
    run.append("events.jsonl", '{"event": "of another version", "time_s": 3}')
    run.iterate()
    async with serving(run.folder.parent) as (_, page):
        assert (await page.view("a"))["job"]["iteration"] == 1


async def test_a_run_of_an_earlier_version_is_shown() -> None:
    earlier = Path(__file__).parents[1] / "data" / "runs"
    async with serving(earlier) as (_, page):
        view = await page.view("0.1.0")
        assert view["job"]["name"] == "earlier-run"
        assert view["job"]["iteration"] == 2


async def test_a_run_whose_folder_is_deleted_ends_its_streams_with_a_reason(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs" / "a")
    async with serving(run.folder.parent) as (_, page), page.stream("a") as stream:
        await stream.next()
        shutil.rmtree(run.folder)
        name, _, data = await stream.next()
        assert (name, data) == ("end", {"error": "the run folder is gone", "status": 404})
        with pytest.raises(EOFError):
            await stream.next()
        assert (await page.get("api/runs/a/view"))[0] == 404


async def test_more_viewers_than_may_look_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasting, "MOST_VIEWERS", 2)
    run = WrittenRun(tmp_path / "runs" / "a")
    async with (
        serving(run.folder.parent) as (_, page),
        page.stream("a") as one,
        page.stream("a") as other,
    ):
        await one.next()
        await other.next()
        async with page.client.get(f"{page.url}api/runs/a/stream") as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"]
            assert "2 viewers look already" in (await answer.json())["error"]


async def test_a_place_is_free_again_when_a_viewer_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasting, "MOST_VIEWERS", 1)
    run = WrittenRun(tmp_path / "runs" / "a")
    async with serving(run.folder.parent) as (_, page):
        async with page.stream("a") as stream:
            await stream.next()
        await page.until("api/runs/a/view", lambda status, _: status == 200)


async def test_more_runs_than_are_followed_at_once_make_room_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasting, "MOST_RUNS", 1)
    runs = [WrittenRun(tmp_path / "runs" / name) for name in "ab"]
    async with serving(runs[0].folder.parent) as (_, page):
        await page.view("a")
        await page.view("b")  # nobody looks at the other one any more
        async with page.stream("b") as stream:
            await stream.next()
            status, said = await page.get("api/runs/a/view")
            assert (status, said["error"]) == (503, "1 runs are looked at, and no more may be")


async def test_nobody_reads_a_run_that_nobody_looks_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasting, "LINGER_S", 0.1)
    run = WrittenRun(tmp_path / "runs" / "a")
    async with serving(run.folder.parent) as (_, page):
        await page.view("a")
        await page.until("metrics", lambda _, text: b"page_runs_followed 0.0" in text)


async def test_a_fault_of_the_view_is_told_and_harms_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty(WatchedRun):
        def view(self) -> RunView:
            if self.folder.name == "a":
                raise ZeroDivisionError
            return super().view()

    monkeypatch.setattr(broadcasting, "WatchedRun", Faulty)
    runs = [WrittenRun(tmp_path / "runs" / name) for name in "ab"]
    async with serving(runs[0].folder.parent) as (_, page):
        status, said = await page.get("api/runs/a/view")
        assert (status, said["error"]) == (503, "the run cannot be shown (ZeroDivisionError)")
        await page.view("b")


async def page_of(broadcasts: broadcasting.Broadcasts, run: WrittenRun) -> int:
    async with broadcasts.viewing(run.folder) as (broadcast, _):
        return broadcast.view().job.iteration


async def ended(broadcasts: broadcasting.Broadcasts) -> None:
    broadcasts.cancel()
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
