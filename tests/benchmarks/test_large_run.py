"""Run folders of any size that were never run, for measuring what reads them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from benchmarks.large_run import make_ledger, rollup_lines, write_large_run
from benchmarks.large_run_world import Size, World
from spotlight.record.ledger import Ledger
from spotlight.report.run_reading import read_run

SIZE = Size(spot_nodes=4, workers=2, hours=1.5, iterations=50, life_h=0.2, side=16, prompts=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "large-run-001"
    write_large_run(path, SIZE)
    return path


def test_the_folder_of_a_large_run_is_read_like_any_other(folder: Path) -> None:
    run = read_run(folder)
    assert len(run.iterations) == SIZE.iterations
    assert run.notes == ()
    assert run.run_seconds == SIZE.hours * 3600


def test_the_lines_of_a_large_run_add_up_to_its_ledger() -> None:
    world = World(SIZE)
    by_line: Counter[tuple[str, str]] = Counter()
    for line in rollup_lines(world):
        for worker, times in line.times.items():
            by_line.update({(worker, state): took for state, took in times.items()})
    billed: Counter[tuple[str, str]] = Counter()
    for bill in make_ledger(world).bills:
        for worker, times in bill.times.items():
            billed.update({(worker, state): took for state, took in times.items()})
    assert len(world.stays) > SIZE.reserved_nodes + SIZE.spot_nodes
    assert by_line == billed


def test_every_bill_of_a_large_run_is_as_long_as_its_node_was_there(folder: Path) -> None:
    ledger = msgspec.json.decode((folder / "ledger.json").read_bytes(), type=Ledger)
    for bill in ledger.bills:
        there_ms = round((bill.to_at - bill.from_at) * 1000)
        assert {sum(times.values()) for times in bill.times.values()} == {there_ms}


def test_the_states_of_a_large_run_are_those_of_its_last_hour_and_agree_with_its_lines(
    folder: Path,
) -> None:
    lines = [json.loads(line) for line in (folder / "states.jsonl").read_text().splitlines()]
    end_s = SIZE.hours * 3600
    found: Counter[str] = Counter()
    since: dict[str, tuple[float, str]] = {}
    for line in [
        *lines,
        *({"worker": w, "time_s": end_s, "state": ""} for w in {x["worker"] for x in lines}),
    ]:
        begun_s, state = since.get(line["worker"], (end_s, ""))
        seconds = line["time_s"] - max(begun_s, end_s - 3600)
        if seconds > 0 and state != "gone":
            found[state] += round(seconds * 1000)
        since[line["worker"]] = line["time_s"], line["state"]
    expected: Counter[str] = Counter()
    for each in rollup_lines(World(SIZE)):
        if each.start_s >= end_s - 3600:
            for times in each.times.values():
                expected.update(times)
    for state in ("rollout", "explore", "train", "score", "evaluate"):
        assert found[state] == expected[state]


def test_a_large_run_follows_from_its_size_and_seed(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_large_run(again, SIZE)
    for path in folder.rglob("*"):
        if path.is_file():
            assert (again / path.relative_to(folder)).read_bytes() == path.read_bytes()
