"""What is made of runs on the test-bed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.exploration.cases import Case
from benchmarks.exploration.comparison import (
    arrivals,
    by_spot_pool,
    compare,
    order_noise,
    spot_time,
    tuning,
)
from benchmarks.exploration.costs import dollars
from benchmarks.exploration.kept_runs import Run
from benchmarks.exploration.rivals import RIVALS

PROFILE = "sol-rl-split"
SPEED = {"spotlight": 4.0, "reserved": 0.8, "data-parallel": 2.0, "pipelined": 1.25}
SPOT = {"idle": 1.0, "rollout": 3.0, "explore": 16.0}
TOTALS = {
    "spot_idle_share": 0.02,
    "pools": {"spot": SPOT},
    "previews": 90,
    "previews_late": 10,
    "delay_s": 0.0,
    "virtual_s": 1000.0,
}


def rising(speed: float, until: float = 1.0) -> Run:
    """A run that gains 0.01 a second at speed 1, up to a plateau."""
    points = [(step / 2, step, min(0.005 * step * speed, until)) for step in range(302)]
    return {"validation": points, "totals": TOTALS}


def runs_of(seeds: list[int], **changes: Any) -> dict[Case, Run]:
    """One of every rival."""
    return {
        Case(task="ocr", rival=rival, seed=seed, **changes): rising(SPEED.get(rival, 1.0))
        for rival in RIVALS
        for seed in seeds
    }


def test_a_speedup_is_the_ratio_of_the_times_to_the_references_scores() -> None:
    figures = compare(arrivals(runs_of([1, 2])), [PROFILE], ["ocr"], [1, 2])
    assert figures["speedup_vs_rollouts[ocr]"] == pytest.approx(4.0, rel=0.01)
    assert figures["speedup_vs_reserved[ocr]"] == pytest.approx(5.0, rel=0.01)
    assert figures["speedup_vs_data_parallel[ocr]"] == pytest.approx(2.0, rel=0.01)
    assert figures["speedup_vs_data_parallel"] == figures["speedup_vs_data_parallel[ocr]"]
    assert figures["speedup_vs_data_parallel_low"] == figures["speedup_vs_data_parallel_high"]
    on_the_way = figures["speedup_on_the_way[ocr]"]["reserved"]
    assert {level: one["seeds"] for level, one in on_the_way.items()} == {
        "25 %": 2, "50 %": 2, "75 %": 2, "95 %": 2
    }  # fmt: skip


def test_the_best_plain_rival_is_the_one_that_is_hardest_to_beat() -> None:
    figures = compare(arrivals(runs_of([1, 2])), [PROFILE], ["ocr"], [1, 2])
    assert figures["speedup_vs_best_plain"] == figures["speedup_vs_pipelined"]
    assert figures["speedup_vs_best_plain"] < figures["speedup_vs_rollouts"]


def test_there_is_no_best_plain_rival_before_all_of_them_have_run() -> None:
    runs = runs_of([1])
    del runs[Case(task="ocr", rival="pipelined", seed=1)]
    figures = compare(arrivals(runs), [PROFILE], ["ocr"], [1])
    assert figures["speedup_vs_best_plain"] is None
    assert figures["speedup_vs_rollouts"] is not None


def test_some_of_the_seeds_are_enough_and_are_counted() -> None:
    figures = compare(arrivals(runs_of([2])), [PROFILE], ["ocr"], [1, 2, 3])
    assert figures["speedup_vs_reserved[ocr]"] == pytest.approx(5.0, rel=0.01)
    assert figures["speedup_on_the_way[ocr]"]["reserved"]["95 %"]["seeds"] == 1
    assert figures["seconds_to_target[ocr]"]["spotlight"] == [None, 24, None]


def test_what_has_no_runs_is_null() -> None:
    figures = compare(arrivals({}), [PROFILE], ["ocr"], [1])
    assert figures["speedup_vs_published"] is None
    assert figures["speedup_vs_uniform_mixed"] is None


def test_a_reference_that_learned_nothing_is_no_measure() -> None:
    runs = runs_of([1])
    runs[Case(task="ocr", rival="rollouts", seed=1)] = rising(0.0)
    assert compare(arrivals(runs), [PROFILE], ["ocr"], [1])["speedup_vs_reserved[ocr]"] is None


def test_figures_of_another_profile_bear_its_name() -> None:
    figures = compare(arrivals(runs_of([1], profile="even")), [PROFILE, "even"], ["ocr"], [1])
    assert figures["speedup_vs_reserved[ocr]"] is None
    assert figures["speedup_vs_reserved[ocr, even]"] == figures["speedup_vs_reserved[even]"]
    assert figures["speedup_vs_reserved[even]"] == pytest.approx(5.0, rel=0.01)


def test_runs_that_never_arrive_are_counted() -> None:
    runs = runs_of([1])
    runs[Case(task="ocr", rival="published", seed=1)] = rising(1.0, until=0.5)
    figures = compare(arrivals(runs), [PROFILE], ["ocr"], [1])
    assert figures["never_arrived[ocr]"]["published"] == 1
    assert figures["never_arrived[ocr]"]["spotlight"] == 0


def test_the_noise_is_how_far_two_orders_of_the_same_samples_lie_apart() -> None:
    runs = runs_of([1])
    other = Case(task="ocr", rival="rollouts", seed=1, is_reordered=True)
    runs[other] = rising(1.25)
    figures = order_noise(arrivals(runs), ["ocr"], [1])
    assert figures["order_noise[ocr, rollouts]"] == pytest.approx(1.25, rel=0.01)
    assert figures["order_noise[ocr, spotlight]"] is None


def test_spot_pools_are_compared_with_the_reference_of_the_same_pool() -> None:
    figures = by_spot_pool(arrivals(runs_of([1]) | runs_of([1], spot_gpus=16)), ["ocr"], [1])
    found = figures["speedup_by_spot_gpus[ocr]"]
    assert list(found) == [4, 8, 16]
    assert found[4] is None
    assert found[16]["value"] == pytest.approx(4.0, rel=0.01)


def test_a_trial_that_was_ended_has_no_time() -> None:
    runs = runs_of([0])
    base = Case(task="ocr", rival="spotlight", seed=0)
    runs[msgspec.structs.replace(base, trial="no-warm-up")] = rising(5.0)
    runs[msgspec.structs.replace(base, trial="higher-rate")] = rising(4.0, until=0.3)
    found = tuning(arrivals(runs), ["ocr"])["tuning[ocr]"]["spotlight"]
    assert (found["as it is"], found["no-warm-up"], found["higher-rate"]) == (24, 19, None)


def test_all_time_of_spot_workers_and_all_their_previews_count() -> None:
    figures = spot_time(runs_of([1]), ["ocr"], [1])
    assert figures["spot_idle_share_of_all_time"] == 0.05
    assert figures["previews_dropped_share"] == 0.1
    assert spot_time(runs_of([1]), ["ocr", "compositional"], [1])["spot_idle_share"] is None


def test_gpus_of_both_pools_are_paid_until_the_target() -> None:
    runs = {
        case: run for case, run in runs_of([1]).items() if case.rival in ("rollouts", "reserved")
    }
    rows = dollars(arrivals(runs), PROFILE, ["ocr"], [1])[f"dollars_to_target[ocr, {PROFILE}]"]
    hours = rows["reserved"]["reserved_gpu_hours"]
    assert rows["reserved"]["spot_gpu_hours"] == 0
    assert rows["reserved"]["dollars"] == pytest.approx(2.0 * hours, abs=0.01)
    assert rows["rollouts"]["spot_gpu_hours"] == pytest.approx(
        2 * rows["rollouts"]["reserved_gpu_hours"], abs=0.02
    )
    assert list(rows) == ["rollouts", "reserved"]
