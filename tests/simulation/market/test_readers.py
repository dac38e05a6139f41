"""Traces of spot markets are read as they were published, or refused in one line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from spotlight.errors import UserError
from spotlight_simulation.market.readers import read_trace, shipped_traces

SHARED = Path("../shared/data/spot-traces")
DATED = "2025-01-01, 10:00:00, {}\n2025-01-01, 11:00:00, {}\n2025-01-01, 12:00:00, 0\n"
ZONES = (
    "scheduled_at,a,b\n"
    "2025-01-01T00:00:00+00:00,4,0\n"
    "2025-01-01T00:10:00+00:00,2,0\n"
    "2025-01-01T00:20:00+00:00,2,0\n"
    "2025-01-01T01:00:00+00:00,3,0\n"
)

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not there")


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_events_of_nodes_tell_how_long_each_stayed(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "0,add,n1\n1000,add,n2\n3000,remove,n1\n4000,add,n3\n"))
    assert trace.lives == ((0.0, 3.0, True), (1.0, 4.0, False), (4.0, 4.0, False))
    assert trace.counts == ((0.0, 1), (1.0, 2), (3.0, 1), (4.0, 2))
    assert (trace.seconds, trace.places, trace.is_held) == (4.0, 2, True)


def test_a_node_that_comes_and_goes_at_one_moment_is_none(tmp_path: Path) -> None:
    text = "0,add,a\n5000,add,b\n5000,remove,b\n9000,remove,a\n"
    trace = read_trace(written(tmp_path, text))
    assert trace.lives == ((0.0, 9.0, True),)
    (stay,) = trace.schedule(pool=1, generator=random.Random(0)).stays
    assert (stay.from_s, stay.until_s) == (0.0, 9.0)


def test_events_in_json_lines_end_with_the_time_of_the_last(tmp_path: Path) -> None:
    text = '[0, "add", {"nodes": ["a", "b"]}]\n[60000, "no-op", {"nodes": [], "duration": 60000}]\n'
    trace = read_trace(written(tmp_path, text, "trace.jsonl"))
    assert (trace.seconds, trace.places, trace.mean_nodes()) == (120.0, 2, 2.0)


def test_running_totals_count_as_they_are_after_each_moment(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "0,1\n0,2\n60000,1\n120000,1\n"))
    assert trace.counts == ((0.0, 2), (60.0, 1), (120.0, 1))


def test_dated_counts_begin_at_the_first(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, DATED.format(4, 2)))
    assert trace.counts == ((0.0, 4), (3600.0, 2), (7200.0, 0))
    assert trace.mean_nodes() == 3.0


def test_a_clock_that_goes_back_a_little_stands_still_and_that_is_said(tmp_path: Path) -> None:
    text = "2025-01-01, 10:01:00, 4\n2025-01-01, 10:00:00, 3\n2025-01-01, 10:05:00, 3\n"
    trace = read_trace(written(tmp_path, text))
    assert trace.counts == ((0.0, 3), (240.0, 3))
    assert "goes back 1 time, " in trace.remarks[0]


def test_it_is_said_where_a_log_has_no_row_for_long(tmp_path: Path) -> None:
    late = DATED.format(4, 2).replace("12:00", "16:30")
    assert read_trace(written(tmp_path, DATED.format(4, 2))).remarks == ()
    (remark,) = read_trace(written(tmp_path, late)).remarks
    assert remark.startswith("up to 5.5 h have no row")


def test_ticks_of_a_launch_probe_are_known_by_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '{"metadata": {"gap_seconds": 60}, "data": [2, 0, 1]}'
    folder = tmp_path / "availability"
    folder.mkdir()
    assert read_trace(written(tmp_path, text, "trace.json")).is_held
    assert not read_trace(written(folder, text, "trace.json")).is_held
    monkeypatch.chdir(folder)
    assert not read_trace("trace.json").is_held


def test_ticks_that_tell_failures_are_turned_round_and_filled_ones_are_a_hole(
    tmp_path: Path,
) -> None:
    filled = '{"gap_start_index": 1, "gap_end_index": 2}'
    text = f'{{"metadata": {{"gap_seconds": 60, "gap_filled": {filled}}}, "data": [0, 0, 0, 1]}}'
    trace = read_trace(written(tmp_path, text, "trace.json"))
    assert trace.counts == ((0.0, 1), (180.0, 0))
    assert trace.holes == ((60.0, 180.0),)
    assert not trace.is_held


def test_a_table_of_zones_has_the_places_of_all_and_the_holes_between_late_rows(
    tmp_path: Path,
) -> None:
    trace = read_trace(written(tmp_path, ZONES), "b")
    assert (trace.places, trace.is_ever_up, trace.seconds) == (4, False, 4200.0)
    assert trace.holes == ((1800.0, 3600.0),)


def test_empty_cells_of_a_zone_are_holes_in_it_alone(tmp_path: Path) -> None:
    cells = ["", "4", "", "4", "4", ""]
    rows = [f"2025-01-01T00:{n}0:00,{cell},1" for n, cell in enumerate(cells)]
    table = written(tmp_path, "\n".join(["scheduled_at,a,b", *rows]))
    trace = read_trace(table, "a")
    assert trace.counts == ((600.0, 4), (1800.0, 4), (2400.0, 4))
    assert trace.holes == ((0.0, 600.0), (1200.0, 1800.0), (3000.0, 3600.0))
    assert trace.without_holes().seconds == 1800.0
    assert read_trace(table, "b").holes == ()


def test_a_table_with_two_zones_of_one_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has two zones `a`; give each column a name of its own"):
        read_trace(written(tmp_path, ZONES.replace(",b", ", a")), "a")


def test_a_zone_without_any_count_is_refused(tmp_path: Path) -> None:
    empty = written(tmp_path, ZONES.replace(",0\n", ",\n"))
    with pytest.raises(UserError, match="zone `b` has no data; choose another one"):
        read_trace(empty, "b")
    alone = "scheduled_at,a\n2025-01-01T00:00:00,\n2025-01-01T00:10:00,\n"
    with pytest.raises(UserError, match="zone `a` has no data; choose another one"):
        read_trace(written(tmp_path, alone))


def test_a_trace_in_which_no_node_ever_comes_has_none_on_average(tmp_path: Path) -> None:
    trace = read_trace(
        written(tmp_path, '[0, "no-op", {"nodes": [], "duration": 60000}]', "t.jsonl")
    )
    assert (trace.seconds, trace.mean_nodes()) == (60.0, 0.0)


def test_the_only_zone_of_a_table_need_not_be_named(tmp_path: Path) -> None:
    one = "\n".join(row.rpartition(",")[0] for row in ZONES.splitlines())
    assert read_trace(written(tmp_path, one)).counts[0] == (0.0, 4)


def test_the_header_of_a_table_may_have_spaces(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, ZONES.replace(",b", ", b")), "b").places == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello world\n", "no format of a trace that is known"),
        ("", "no format of a trace that is known"),
        ("0,3\n", "has no length"),
        ("0,3\n1000,-2\n", "line 2: `-2` is not a number of nodes"),
        ("0,3\nnan,2\n", "line 2: `nan` is not a time"),
        ("0,3\n1000\n", "line 2: has 1 cell, not 2"),
        ("0,3\n1000,1000000000\n", "line 2: 1,000,000,000 nodes are more than any market has"),
        ("0,3\n1600000000000,3\n", "line 2: the clock jumps from 0 to 1.6e+09 s"),
        ("1600000000000,add,a\n", "line 1: the clock jumps from 0 to 1.6e+09 s"),
        (f"{DATED.format(4, 2)}2035-01-01, 09:00:00, 1\n", "line 4: the clock jumps"),
        ("5000,add,a\n1000,remove,a\n", "line 2: the clock goes back from 5 to 1 s"),
        ("0,add,a\n1000,add,a\n", "line 2: `add` a, which is there already"),
        ("0,add,a\n1000,remove,b\n", "line 2: `remove` b, which is not there"),
        ("0,add,a\n1000,dance,a\n", "line 2: `dance` is neither `add` nor `remove`"),
        ('[0, "dance", {"nodes": []}]\n', "line 1: `dance` is no event"),
        ('[0, "add"]\n', "line 1: is no event"),
        ('[0, "add", {"nodes": [], "duration": -1}]\n', "line 1: is no event"),
        ("[" * 100_000, "line 1: is no event"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "is no list of ticks"),
        ('{"metadata": {"gap_seconds": 1e300}, "data": [1]}', "is no list of ticks"),
        ('{"metadata": {"gap_seconds": 60}, "data": [1000000000]}', "is no list of ticks"),
        ('{"metadata": ' * 100_000, "is no list of ticks"),
        ('{"other": ' * 100_000, "is no list of ticks"),
        ('{"metadata": {"gap_seconds": 60}, "data": [-1]}', "is no list of ticks"),
        ('{"metadata": {"gap_seconds": 60}, "data": [null, null]}', "has no data, only holes"),
        (f"{DATED.format(4, 2)}2025-01-01, 09:00:00, 1\n", "line 4: the clock goes back"),
        ("2025-13-01, 09:00:00, 1\n", "line 1: `2025-13-01T09:00:00` is no date"),
        (ZONES, "has several zones; choose one of a, b"),
        (ZONES.replace("00:20:00", "00:05:00"), "has several zones"),
    ],
    ids=range(29),
)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        read_trace(written(tmp_path, text))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_table_whose_clock_goes_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 4: the clock goes back"):
        read_trace(written(tmp_path, ZONES.replace("00:20:00", "00:05:00")), "a")


def test_a_zone_is_refused_where_there_is_only_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave the zone out"):
        read_trace(written(tmp_path, "0,3\n1000,2\n"), "a")


def test_a_trace_that_is_not_there_is_refused_with_those_that_ship() -> None:
    with pytest.raises(UserError, match="bamboo/p3-trace"):
        read_trace("nothing/here.csv")


@pytest.mark.parametrize(
    ("name", "hours", "places", "mean"),
    [
        ("bamboo/p3-trace.csv", 11.4, 32, 24.0),
        ("bamboo/g4dn-trace.csv", 10.8, 24, 12.6),
        ("bamboo/gcp-a100x1-us-east1b.csv", 27.0, 64, 57.3),
        ("bamboo/gcp-v100x1-us-east1c.csv", 24.2, 80, 76.3),
    ],
)
def test_shipped_traces_say_what_is_known_of_them(
    name: str, hours: float, places: int, mean: float
) -> None:
    trace = read_trace(name)
    assert round(trace.seconds / 3600, 1) == hours
    assert trace.places == places
    assert round(trace.mean_nodes(), 1) == mean


def test_every_shipped_trace_can_be_read_and_has_its_licence() -> None:
    names = shipped_traces()
    assert len(names) == 8
    for name in names:
        zone = "us-east4-a" if name.startswith("skynomad") else None
        assert read_trace(name, zone).is_ever_up


@needs_shared
@pytest.mark.parametrize(
    ("name", "mean", "is_held"),
    [
        ("skypilot/availability/16-node/aws-08-27-2023/us-east-2b_v100_1.json", 8.8, False),
        ("skypilot/preemption/4-node/aws-08-03-2023/us-east-2a_v100_1.json", 2.9, True),
        ("spothedge/GCP1/us-central1-a_a100_40gb_8.json", 2.1, True),
    ],
)
def test_traces_that_do_not_ship_say_what_is_known_of_them(
    name: str, mean: float, is_held: bool
) -> None:
    trace = read_trace(SHARED / name)
    assert round(trace.mean_nodes(), 1) == mean
    assert trace.is_held == is_held


@needs_shared
def test_a_zone_that_is_never_up_is_read_as_such() -> None:
    trace = read_trace(SHARED / "spothedge/GCP1/us-east1-b_a100_40gb_8.json")
    assert (trace.is_ever_up, trace.mean_nodes()) == (False, 0.0)
