"""Everybody on made-up markets, with made-up runs."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from benchmarks.exploration.ratios import Arrival
from benchmarks.markets.comparison import JOB_H, Field, Replay, cost, hours, over
from benchmarks.markets.entrants import RESERVED, SPOTLIGHT, Entrant, Learned
from benchmarks.markets.places import PRICES as PRICE_TABLES
from benchmarks.markets.places import Place
from benchmarks.markets.tables import TABLES
from spotlight.errors import UserError
from spotlight_simulation.market import rivals
from spotlight_simulation.market.batch_model import Pace, System
from spotlight_simulation.market.readers import read_trace
from spotlight_simulation.market.schedule import Prices, Schedule, Stay
from tests.benchmarks.exploration.made_up_work import WORK

SEEDS = (11, 12, 13)
PRICES = Prices(name="half", currency="USD", reserved_per_gpu_hour=2.0, spot_per_gpu_hour=1.0)


def learned(*iterations: float, arrived: bool = True) -> Learned:
    at = {seed: Arrival(count, arrived) for seed, count in zip(SEEDS, iterations, strict=True)}
    return Learned(WORK, at, {seed: [(0.0, 0.0), (100.0, 1.0)] for seed in SEEDS})


def entrant(system: System, made: Learned, *, is_ours: bool = False) -> Entrant:
    return Entrant(title=system.name, learned=made, with_system=system, is_ours=is_ours)


def schedule(*, nodes: int, seconds: float = 400 * 3600.0) -> Schedule:
    stays = tuple(
        Stay(node=f"spot-{n}", from_s=0.0, until_s=seconds, notice_s=0.0, is_taken=False)
        for n in range(nodes)
    )
    return Schedule(market="m", is_held=True, pool=2, seconds=seconds, stays=stays)


RESERVED_ALONE = entrant(rivals.on_demand(RESERVED, 4, Pace(100.0)), learned(100, 100, 100))
ELASTIC = entrant(
    rivals.elastic(SPOTLIGHT, 4, [Pace(100.0), Pace(50.0)]), learned(100, 100, 100), is_ours=True
)
FIELD = Field({SPOTLIGHT: ELASTIC, RESERVED: RESERVED_ALONE})


def test_the_reserved_gpus_alone_take_the_time_that_a_job_is_said_to_take() -> None:
    result = FIELD.on([schedule(nodes=0)])[RESERVED]
    assert result.hours(11) == pytest.approx(JOB_H)
    assert result.cost(11, PRICES) == pytest.approx(JOB_H * 4 * 2.0)


def test_a_node_makes_it_faster_from_when_it_is_ready() -> None:
    result = FIELD.on([schedule(nodes=1)])[SPOTLIGHT]
    ready_h = rivals.READY_S / 3600
    taken_h = ready_h + (JOB_H - ready_h) / 2
    assert result.hours(11) == pytest.approx(taken_h)
    assert result.cost(11, PRICES) == pytest.approx(taken_h * (4 * 2.0 + 2 * 1.0))


def test_a_run_of_ours_that_never_arrived_counts_as_taking_twice_its_iterations() -> None:
    never = learned(100, 100, 100, arrived=False)
    ours = entrant(ELASTIC.system(schedule(nodes=0)), never, is_ours=True)
    theirs = entrant(RESERVED_ALONE.system(schedule(nodes=0)), never)
    assert ours.iterations(11) == 200
    assert theirs.iterations(11) == 100


def test_who_is_not_there_in_time_needs_infinitely_much() -> None:
    short = schedule(nodes=0, seconds=3600.0)
    result = FIELD.on([short])[SPOTLIGHT]
    assert result.given_up == len(SEEDS)
    assert math.isinf(result.hours(11))
    assert math.isinf(result.cost(11, PRICES))


def test_ratios_are_medians_over_markets_and_means_over_seeds() -> None:
    results = {f"market-{nodes}": FIELD.on([schedule(nodes=nodes)]) for nodes in (0, 1)} | {
        "market-2": FIELD.on([schedule(nodes=1)])
    }
    found = over({"ocr": results}, {"ocr": SEEDS}, [RESERVED], hours, list(results))
    assert found is not None
    assert found["value"] == pytest.approx(2.0, rel=0.01)
    assert (found["lowest"], found["highest"]) == (1.0, 2.0)


def test_a_market_on_which_spotlight_is_not_there_in_time_is_named() -> None:
    late = entrant(rivals.on_demand(SPOTLIGHT, 4, Pace(1000.0)), learned(100, 100, 100))
    replay = Replay({("ocr", 4): Field({SPOTLIGHT: late, RESERVED: RESERVED_ALONE})})
    with pytest.raises(UserError, match=r"^p3, ocr, 4 nodes: Spotlight is not at the target"):
        replay.visit(Place("p3", read_trace("bamboo/p3-trace.csv")))


def test_a_rival_that_is_never_there_in_time_takes_infinitely_many_times_as_long() -> None:
    slow = entrant(rivals.on_demand("slow", 4, Pace(1000.0)), learned(100, 100, 100))
    field = Field({SPOTLIGHT: ELASTIC, RESERVED: RESERVED_ALONE, "slow": slow})
    results = {"m": field.on([schedule(nodes=1)])}
    found = over({"ocr": results}, {"ocr": SEEDS}, ["slow"], hours, ["m"])
    assert found is not None
    assert math.isinf(found["value"])
    row = {"title": "slow", "hours": found, "given_up": 3, "runs": 3}
    row |= {prices.name: found for prices in PRICE_TABLES}
    _, _, shown = TABLES["rivals"]({"rivals[4]": {"slow": row}}, "4")
    assert list(shown)[:2] == ["slow", "never"]


def test_of_several_rivals_the_one_that_is_hardest_to_beat_counts() -> None:
    slower = entrant(rivals.on_demand("slower", 4, Pace(200.0)), learned(100, 100, 100))
    field = Field({SPOTLIGHT: ELASTIC, RESERVED: RESERVED_ALONE, "slower": slower})
    results = {"m": field.on([schedule(nodes=1)])}
    for measure in (hours, cost(PRICES)):
        found = over({"ocr": results}, {"ocr": SEEDS}, ["slower", RESERVED], measure, ["m"])
        assert found is not None
        assert found["rival"] == RESERVED


def test_the_way_grows_with_the_time_and_ends_at_the_target() -> None:
    ways = FIELD.on([schedule(nodes=1)])[SPOTLIGHT].ways
    assert ways.in_time == pytest.approx((0.25, 0.5, 1.0), abs=0.01)
    assert all(early <= late for early, late in pairwise(ways.for_money))
