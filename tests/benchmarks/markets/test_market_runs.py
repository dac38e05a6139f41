"""Real runs on markets, and who takes part."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from benchmarks.exploration.kept_runs import RUNS
from benchmarks.markets.comparison import Field
from benchmarks.markets.entrants import (
    ALL_ON_SPOT,
    NO_MARKET,
    POOLS,
    RESERVED,
    SPOTLIGHT,
    TASKS,
    Entrant,
    Kept,
    entrants,
)
from benchmarks.markets.one_market import MARKET, NODES, RIVALS, one_market, timed_again
from benchmarks.markets.places import PAPER, SHARED, places
from benchmarks.markets.real_runs import TIMES, absences_of, compressed, stretched
from benchmarks.markets.tables import TABLES
from spotlight.errors import UserError
from spotlight_simulation.market.batch_model import BOOT_S, Market, course

DOCS = Path(__file__).parents[3] / "docs"


@cache
def everybody(task: str, nodes: int) -> dict[str, Entrant]:
    return entrants(Kept(RUNS, task), nodes)


def test_the_places_of_the_test_bed_are_full_when_the_market_has_nodes() -> None:
    schedule = compressed("g4dn-trace", 4)
    absences = absences_of(schedule)
    for second in range(60, 3000, 7):
        away = sum(each.at_s <= second < each.at_s + each.away_s for each in absences)
        booting = sum(
            stay.from_s <= second < stay.from_s + BOOT_S / TIMES
            for stay in schedule.stays
            if stay.from_s > 0
        )
        there = schedule.nodes_at(float(second))
        assert 4 - there <= away <= 4 - there + booting


def test_nobody_is_away_twice_at_the_same_time() -> None:
    absences = absences_of(compressed("p3-trace", 4))
    for node in {each.node for each in absences}:
        own = [each for each in absences if each.node == node]
        for before, after in pairwise(own):
            assert before.at_s + before.away_s <= after.at_s


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("nodes", POOLS)
def test_all_that_the_comparison_reads_is_kept(task: str, nodes: int) -> None:
    found = everybody(task, nodes)
    assert {"spotlight", "reserved", "torchrun-on-spot", "published-on-demand"} <= found.keys()


@pytest.mark.parametrize("task", TASKS)
def test_spotlight_on_spot_nodes_alone_trains_as_on_reserved_ones_once_so_many_are_there(
    task: str,
) -> None:
    found = everybody(task, 4)
    usual, alone = (found[name].system(NO_MARKET).paces for name in (SPOTLIGHT, ALL_ON_SPOT))
    assert [pace.rate for pace in alone[:2]] == [0.0, 0.0]
    assert alone[2:] == usual[:3]


@pytest.mark.parametrize("task", TASKS)
def test_all_that_train_and_choose_are_faster_with_every_node(task: str) -> None:
    paces = everybody(task, 4)["all-choose-on-spot-alone"].system(NO_MARKET).paces
    rates = [pace.rate for pace in paces]
    assert rates[0] == 0.0
    assert all(fewer < more for fewer, more in pairwise(rates))


def test_a_pool_without_runs_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"benchmarks\.markets\.real_runs --task ocr --nodes 0"):
        Kept(tmp_path, "ocr").paces(4)


def test_a_rival_without_spot_nodes_takes_its_own_iterations_on_a_market() -> None:
    market = Market(stretched(MARKET, NODES))
    reserved = everybody("ocr", NODES)[RESERVED]
    system = reserved.system(market.schedule)
    came = timed_again(reserved, 11, course(system, market))
    seconds = reserved.iterations(11) * system.paces[0].iteration_s * TIMES
    assert came.hours == pytest.approx(seconds / 3600)
    assert came.cost == pytest.approx(came.hours * 4 * PAPER.reserved_per_gpu_hour)


def test_a_rival_that_is_not_at_the_target_when_the_market_ends_is_named() -> None:
    short = Market(msgspec.structs.replace(stretched(MARKET, NODES), seconds=3600.0))
    reserved = everybody("ocr", NODES)[RESERVED]
    with pytest.raises(UserError, match=r"p3-trace: the reserved GPUs alone \(seed 11\) is not at"):
        timed_again(reserved, 11, course(reserved.system(short.schedule), short))


def test_without_runs_of_spotlight_on_the_market_nothing_counts_as_measured(
    tmp_path: Path,
) -> None:
    fields = {task: Field(everybody(task, NODES)) for task in TASKS}
    found = one_market(tmp_path, fields)
    assert [found[SPOTLIGHT][f"hours[{task}]"] for task in TASKS] == [None, None]
    assert all(found[name]["hours"] is None for name in RIVALS)
    rows = [list(row) for row in TABLES["one-market"]({"one_market": found})]
    assert rows[3][1:] == ["not measured"] * 6


def test_markets_that_ship_are_there_without_any_folder_of_traces(tmp_path: Path) -> None:
    names = [place.name for place in places(tmp_path)]
    assert len([name for name in names if name.startswith("bamboo/")]) == 4
    assert len([name for name in names if name.startswith("skynomad/")]) == 13


def test_no_two_markets_have_the_same_name() -> None:
    names = [place.name for place in places()]
    assert len(set(names)) == len(names)


def test_a_market_is_entered_at_several_moments_with_the_same_share_of_nodes() -> None:
    place = next(iter(places(Path("nowhere"))))
    shares = []
    for schedule in place.schedules(4):
        billed = sum(stay.until_s - stay.from_s for stay in schedule.stays)
        shares.append(billed / schedule.seconds / 4)
    assert min(shares) > 0.5 * place.share
    assert max(shares) < 1.5 * place.share


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tables_of_markets_in_the_docs_are_those_of_the_runs_that_are_kept(
    tmp_path: Path,
) -> None:
    if not SHARED.is_dir():
        pytest.skip("the tables are of public traces, some of which do not ship")
    page, copy = DOCS / "markets.md", tmp_path / "markets.md"
    copy.write_text(page.read_text())
    command = [sys.executable, "-m", "benchmarks.replay", "--json", "--tables", str(copy)]
    subprocess.run(command, check=True, cwd=DOCS.parent, stdout=subprocess.DEVNULL, timeout=240)
    assert copy.read_text() == page.read_text(), f"{page.name}: make its tables anew"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("replay --tables nowhere.md", "--tables: nowhere.md is no file"),
        ("markets.real_runs --task dance --seed 11 --nodes 4", "invalid choice: 'dance'"),
        ("markets.real_runs --task ocr --seed 11 --nodes 4 --market x", "bamboo/x.csv: there is"),
        (
            "markets.real_runs --task ocr --seed 11 --nodes 0 --market p3-trace",
            "must be 1 at least",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(command: str, said: str) -> None:
    words = [sys.executable, "-m", *f"benchmarks.{command}".split()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert said in done.stderr.splitlines()[-1]
