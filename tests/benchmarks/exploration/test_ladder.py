"""The ladder of rivals, from runs that are made up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.exploration.cases import PROFILES, Case
from benchmarks.exploration.kept_runs import Run
from benchmarks.exploration.ladder import LADDER, OURS_TRAINING, SPOT_POOLS, ladder, splits, wanted
from spotlight_simulation.profile import load_profile

SPLITS = {name: load_profile(path) for name, path in PROFILES.items()}
CLOCKS = dict.fromkeys(splits(PROFILES, ["ocr"]), 50.0)
SEEDS = [11, 12, 13]
KEY = "ladder[ocr, sol-rl-split, 8]"


def rising(a_version: float, previews: int = 0) -> Run:
    """A run whose score gains so much with each weights version, up to 1."""
    points = [(26.0 + version, version, min(1.0, a_version * version)) for version in range(101)]
    return {"validation": points, "iterations": 101, "totals": {"previews": 100 * previews}}


def runs_of(tasks: list[str], seeds: list[int]) -> dict[Case, Run]:
    """Of all that the ladder reads; those with chosen samples gain four times as much."""
    return {
        case: rising(0.04, 62) if case.rival in ("spotlight", "inline") else rising(0.01)
        for case in wanted(tasks, seeds)
    }


def rows_of(key: str = KEY, runs: dict[Case, Run] | None = None) -> dict[str, Any]:
    """The rows of one table."""
    made = runs_of(["ocr"], SEEDS) if runs is None else runs
    return ladder(made, CLOCKS, SPLITS, ["ocr"], SEEDS)[key]["rows"]


def test_every_split_has_a_table_with_each_spot_pool() -> None:
    found = ladder(runs_of(["ocr"], SEEDS), CLOCKS, SPLITS, ["ocr"], SEEDS)
    assert len(found) == len(SPLITS) * len(SPOT_POOLS)
    assert set(rows_of()) == {name for name, rung in LADDER.items() if rung.cases("ocr")}


def test_a_ratio_is_that_of_versions_times_that_of_iterations() -> None:
    rows = rows_of()
    iterations = rows["reserved"]["iteration_s"] / rows[OURS_TRAINING]["iteration_s"]
    assert rows[OURS_TRAINING]["over_reserved"]["value"] == pytest.approx(4 * iterations, rel=0.05)
    assert rows["reserved"]["ours_over_it"] == rows[OURS_TRAINING]["over_reserved"]


def test_two_seeds_have_no_interval() -> None:
    runs = {case: run for case, run in runs_of(["ocr"], SEEDS).items() if case.seed != 13}
    over = rows_of(runs=runs)[OURS_TRAINING]["over_reserved"]
    assert (over["seeds"], over["low"], over["high"]) == (2, None, None)


def test_without_runs_on_reserved_gpus_there_is_nothing_to_measure_by() -> None:
    assert ladder({}, CLOCKS, SPLITS, ["ocr"], SEEDS)[KEY] is None


def test_a_rival_without_runs_has_no_row() -> None:
    runs = {case: run for case, run in runs_of(["ocr"], SEEDS).items() if case.rival != "inline"}
    assert not {"fresh", "fresh-on-spot"} & set(rows_of(runs=runs))


def test_a_run_that_never_arrives_counts_as_arriving_when_it_ended() -> None:
    runs = runs_of(["ocr"], SEEDS)
    slow = {case: rising(0.005) if case.rival == "pipelined" else run for case, run in runs.items()}
    row = rows_of(runs=slow)["pipelined"]
    assert row["never_arrived"] == len(SEEDS)
    ended_s = 26 + 100 * row["iteration_s"]
    assert set(row["seconds_to_target"]) == set(SEEDS)
    assert list(row["seconds_to_target"].values()) == pytest.approx([ended_s] * 3, rel=0.01)


def test_spot_gpus_that_also_train_gain_more_the_more_of_an_iteration_is_training() -> None:
    gains = []
    for profile in ("even-split", "sol-rl-split", "verl-omni-split"):
        rows = rows_of(f"ladder[ocr, {profile}, 16]")
        gains.append(rows["spotlight"]["iteration_s"] / rows[OURS_TRAINING]["iteration_s"])
    assert gains == sorted(gains)


def test_a_simulated_clock_counts_instead_of_the_formula() -> None:
    assert rows_of()["spotlight-simulated"]["iteration_s"] == 50.0
    found = ladder(runs_of(["ocr"], SEEDS), {}, SPLITS, ["ocr"], SEEDS)[KEY]
    assert "spotlight-simulated" not in found["rows"]


def test_all_spot_gpus_cost_less_and_take_longer_by_what_is_lost() -> None:
    rows = rows_of()
    for name in ("data-parallel", "fresh", "previous"):
        here, on_spot = rows[name], rows[f"{name}-on-spot"]
        assert on_spot["dollars_an_hour"] == pytest.approx(0.3 * here["dollars_an_hour"])
        assert on_spot["iteration_s"] >= here["iteration_s"]


def test_the_way_grows_with_time_and_is_whole_at_the_target() -> None:
    for row in rows_of().values():
        shares = [one["value"] for one in row["way_in_time"]]
        assert shares == sorted(shares)
        assert max(shares) <= 1.0


def test_tasks_of_the_ladder_alone_share_the_run_of_all_that_do_not_choose() -> None:
    for name in ("reserved", "rollouts", "data-parallel"):
        (case,) = LADDER[name].cases("ocr-20-steps").values()
        assert case == msgspec.structs.replace(case, rival="rollouts")
