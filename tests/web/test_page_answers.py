"""What else the page's server answers: the list of runs, pictures, spans of time, and what those
who watch over a cluster ask for."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from spotlight.record.ledger import Ledger, Milliseconds, NodeBill, Price, RollupLine, TimeState
from spotlight.store.ledger_file import write_ledger
from spotlight.store.rollups import FOLDER, Rollups
from spotlight.web import run_pictures
from spotlight.web.exposition import Family, exposition
from tests.web.page_kit import WrittenRun, serving

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
PICTURES = "validation/version-1"


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    run = WrittenRun(tmp_path / "runs" / "a", iterations=4)
    (run.folder / PICTURES).mkdir(parents=True)
    (run.folder / PICTURES / "0.png").write_bytes(PNG)
    return run


def bill(**changes: Any) -> NodeBill:
    wanted = {
        "node": "spot-0",
        "pool": "spot",
        "process": "p",
        "workers": 1,
        "from_at": 1.0,
        "to_at": 2.0,
        "price": Price(2.0),
        "times": {"spot-0/0": {"rollout": 1_800_000, "idle": 900_000}},
        **changes,
    }
    return NodeBill(**wanted)


async def test_the_list_says_of_each_run_what_one_picks_it_by(run: WrittenRun) -> None:
    run.iterate(2)
    run.validate(0.75)
    run.iterate()
    other = WrittenRun(run.folder.parent / "b", iterations=9)
    other.event("run_finished", outcome="finished", reason="")
    write_ledger(other.folder, Ledger(bills=(bill(),)))
    os.utime(run.folder / "metrics.jsonl", (2e9, 2e9))
    async with serving(run.folder.parent) as (_, page):
        _, (first, second) = await page.get("api/runs")
    assert first == {
        "name": "a",
        "outcome": "running",
        "iteration": 3,
        "iterations": 4,
        "validation": 0.75,
        "spent": None,
    }
    assert (second["name"], second["outcome"], second["spent"]) == ("b", "finished", 1.5)


async def test_a_run_that_nobody_has_written_to_for_long_is_unfinished(run: WrittenRun) -> None:
    for file in run.folder.iterdir():
        os.utime(file, (1e9, 1e9))
    async with serving(run.folder.parent) as (_, page):
        assert (await page.get("api/runs"))[1][0]["outcome"] == "unfinished"
        assert (await page.view("a"))["job"]["outcome"] == "unfinished"


async def test_a_list_is_made_of_runs_that_are_damaged_too(run: WrittenRun) -> None:
    (run.folder / "config.yaml").write_bytes(b"\xff: [")
    (run.folder / "ledger.json").write_text("{")
    run.append("metrics.jsonl", "[]")
    run.iterate()
    async with serving(run.folder.parent) as (_, page):
        assert (await page.get("api/runs"))[1][0]["iteration"] == 1
        status, said = await page.get("api/runs/a/view")
        assert status == 503
        assert "config.yaml" in said["error"]


@pytest.mark.parametrize("name", ["b", "..", ".", "%2e%2e", "a%2Fb", "..%2F..", "a%00", "%ff"])
async def test_a_name_that_is_no_run_is_not_found(run: WrittenRun, name: str) -> None:
    async with serving(run.folder.parent) as (server, page):
        url = URL(f"{server.url}api/runs/{name}/view", encoded=True)
        async with page.client.get(url) as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]


async def test_where_one_run_is_shown_there_is_no_other(run: WrittenRun) -> None:
    WrittenRun(run.folder.parent / "b")
    async with serving(run.folder.parent, only="a") as (_, page):
        assert [each["name"] for each in (await page.get("api/runs"))[1]] == ["a"]
        assert (await page.get("api/runs/b/view"))[0] == 404
        assert (await page.get("files/b/x.png"))[0] == 404


async def test_a_picture_is_sent_as_it_is_and_once(run: WrittenRun) -> None:
    url = f"files/a/{PICTURES}/0.png"
    async with serving(run.folder.parent) as (_, page), page.client.get(page.url + url) as answer:
        assert await answer.read() == PNG
        assert answer.content_type == "image/png"
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        again = {"If-None-Match": answer.headers["ETag"]}
        async with page.client.get(page.url + url, headers=again) as second:
            assert second.status == 304


def no_picture(run: Path) -> dict[str, str]:
    """Paths below the folder of a run that lead to no picture in it."""
    outside = run.parent / "outside.png"
    outside.write_bytes(PNG)
    (run / "link.png").symlink_to(outside)
    (run / "linked").symlink_to(run.parent)
    (run / "text.png").write_text("not a picture")
    (run / "page.svg").write_text("<svg/>")
    (run / "folder.png").mkdir()
    os.mkfifo(run / "pipe.png")
    return {
        "a link": "link.png",
        "below a link": "linked/outside.png",
        "outside": "..%2Foutside.png",
        "outside, step by step": "%2e%2e/outside.png",
        "absolute": "%2Fetc%2Fpasswd.png",
        "text": "text.png",
        "another type": "page.svg",
        "no picture at all": "config.yaml",
        "a folder": "folder.png",
        "a pipe": "pipe.png",
        "not there": "nothing.png",
        "nothing named": "",
        "a character that no name has": "%00.png",
        "too deep": "/".join(["x"] * 40) + ".png",
    }


async def test_nothing_but_pictures_inside_the_run_folder_is_sent(run: WrittenRun) -> None:
    paths = no_picture(run.folder)
    async with serving(run.folder.parent) as (server, page):
        for what, path in paths.items():
            url = URL(f"{server.url}files/a/{path}", encoded=True)
            async with page.client.get(url) as answer:
                assert answer.status == 404, what


async def test_a_picture_that_is_too_large_is_not_sent(
    run: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_pictures, "LARGEST", 50)
    async with serving(run.folder.parent) as (_, page):
        assert (await page.get(f"files/a/{PICTURES}/0.png"))[0] == 404


async def test_a_span_of_time_is_told_by_the_roll_ups(run: WrittenRun) -> None:
    write_rollups(run)
    async with serving(run.folder.parent) as (_, page):
        status, said = await page.get("api/runs/a/time?from_s=10&to_s=20")
        assert status == 200
        assert said["areas"]["edges"][0] == 10
        assert said["areas"]["edges"][-1] == 20
        assert set(said["areas"]["pools"]["spot"]) == {"idle"}
        assert [lane["name"] for lane in said["lanes"]] == ["spot-0/0"]


async def test_lanes_of_a_span_are_those_of_the_states_where_they_are_known(
    run: WrittenRun,
) -> None:
    write_rollups(run)
    worker = {"worker": "spot-0/0", "node": "spot-0", "pool": "spot", "event": "worker_state"}
    for time_s, state in ((0.0, "loading"), (12.5, "rollout"), (14.25, "idle"), (25.0, "gone")):
        line = msgspec.json.encode({"time_s": time_s, "state": state, **worker})
        run.append("states.jsonl", line.decode())
    async with serving(run.folder.parent) as (_, page):
        _, said = await page.get("api/runs/a/time?from_s=10&to_s=20")
        (lane,) = said["lanes"]
        assert [(start, end) for _, start, end in lane["parts"]] == [
            (10, 12.5),
            (12.5, 14.25),
            (14.25, 20),
        ]


@pytest.mark.parametrize("query", ["from_s=x", "to_s=nan", "from_s=inf"])
async def test_a_span_that_is_none_is_refused(run: WrittenRun, query: str) -> None:
    async with serving(run.folder.parent) as (_, page):
        status, said = await page.get(f"api/runs/a/time?{query}")
        assert (status, "must be a number of seconds" in said["error"]) == (400, True)


async def test_a_span_that_ends_before_it_begins_is_empty(run: WrittenRun) -> None:
    async with serving(run.folder.parent) as (_, page):
        said = (await page.get("api/runs/a/time?from_s=5&to_s=1"))[1]
        assert said == {"areas": {"edges": [], "pools": {}}, "lanes": []}


async def test_it_is_ready_once_a_coordinator_accounts_for_a_node(run: WrittenRun) -> None:
    async with serving(run.folder.parent) as (_, page):
        assert (await page.get("readyz"))[0] == 503
        write_ledger(run.folder.parent, Ledger(at=time.time(), bills=(bill(is_there=False),)))
        assert (await page.get("readyz"))[0] == 503
        write_ledger(run.folder.parent, Ledger(at=time.time(), bills=(bill(),)))
        assert await page.get("readyz") == (200, b"ready: 1 nodes\n")
        write_ledger(run.folder.parent, Ledger(at=time.time() - 120, bills=(bill(),)))
        assert (await page.get("readyz"))[0] == 503


async def test_metrics_are_read_by_prometheus_and_have_fixed_labels(run: WrittenRun) -> None:
    run.iterate(3, reward=0.25)
    run.validate(0.5)
    unpriced = bill(node="r", pool="reserved", price=None, times={"r/0": {"train": 1500}})
    write_ledger(run.folder, Ledger(at=time.time(), bills=(bill(), unpriced)))
    async with serving(run.folder.parent) as (_, page):
        found = families_in((await page.get("metrics"))[1].decode())
    assert found["spotlight_iteration_reward_mean"] == {(("job", "a"),): 0.25}
    assert found["spotlight_validation_score"] == {(("job", "a"),): 0.5}
    assert found["spotlight_spent"] == {(("job", "a"), ("pool", "spot")): 1.5}
    assert found["spotlight_worker_seconds"] == {
        (("job", "a"), ("pool", "spot"), ("state", "rollout")): 1800.0,
        (("job", "a"), ("pool", "spot"), ("state", "idle")): 900.0,
        (("job", "a"), ("pool", "reserved"), ("state", "train")): 1.5,
    }
    labels = {name for samples in found.values() for key in samples for name, _ in key}
    assert labels == {"job", "pool", "state"}


async def test_help_of_metrics_is_that_of_the_glossary(run: WrittenRun) -> None:
    run.iterate()
    glossary = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    async with serving(run.folder.parent) as (_, page):
        text = (await page.get("metrics"))[1].decode()
    told = {one.name: one.documentation for one in text_string_to_metric_families(text)}
    assert all(told.values())
    assert told["spotlight_iteration_reward_mean"] in glossary


def test_names_and_numbers_of_all_kinds_are_read_as_they_were_written() -> None:
    family = Family("a_total", "counter", 'Help with \\ and\nmore "lines".')
    family.add(1.5, job='a "b"\\\n', pool="spot")
    family.add(float("inf"), job="\udcff")
    family.add(1e-9, job="small")
    text = exposition([family, Family("empty", "gauge", "Without samples.")])
    (parsed,) = text_string_to_metric_families(text)
    assert parsed.documentation == family.help
    assert [(each.labels, each.value) for each in parsed.samples] == [
        ({"job": 'a "b"\\\n', "pool": "spot"}, 1.5),
        ({"job": "?"}, float("inf")),
        ({"job": "small"}, 1e-9),
    ]


def families_in(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    return {
        family.name: {tuple(each.labels.items()): each.value for each in family.samples}
        for family in text_string_to_metric_families(text)
    }


def write_rollups(run: WrittenRun) -> None:
    """Of a worker that rolls out for 10 s, and is idle then."""
    (run.folder / FOLDER).mkdir()
    rollups = Rollups(run.folder / FOLDER)
    states: tuple[TimeState, ...] = "rollout", "idle", "idle"
    for number, state in enumerate(states, start=1):
        end_s = 10.0 * number
        times: dict[str, Milliseconds] = {"spot-0/0": {state: 10_000}}
        line = RollupLine(number=number, start_s=end_s - 10, end_s=end_s, at=end_s, times=times)
        rollups.append(line)
    rollups.close()
    write_ledger(run.folder, Ledger(number=3, at=30.0, time_s=30.0, bills=(bill(),)))
