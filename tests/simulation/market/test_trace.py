"""A trace becomes the schedule of a pool."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import mean

import msgspec
import pytest

from spotlight.errors import UserError
from spotlight_simulation.market.readers import read_trace
from spotlight_simulation.market.schedule import Schedule
from spotlight_simulation.market.trace import Count, Hole, Life, Trace

FALLING = Trace(
    market="test",
    is_held=True,
    seconds=100.0,
    places=4,
    counts=(Count(0.0, 4), Count(40.0, 2), Count(60.0, 3)),
)
HOLED = msgspec.structs.replace(FALLING, holes=(Hole(50.0, 60.0),))


def drawn(trace: Trace, pool: int, seed: int = 0, **stretch: float) -> Schedule:
    return trace.schedule(pool=pool, generator=random.Random(seed), **stretch)


def test_a_pool_of_all_places_has_all_nodes_of_the_market() -> None:
    schedule = drawn(FALLING, 4)
    assert [schedule.nodes_at(at_s) for at_s in (0.0, 39.0, 40.0, 59.0, 60.0, 99.0)] == [
        *(4, 4),
        *(2, 2),
        *(3, 3),
    ]
    assert sum(stay.is_taken for stay in schedule.stays) == 2


def test_a_pool_of_a_part_of_the_places_has_that_part_of_the_market_on_average() -> None:
    trace = read_trace("bamboo/p3-trace.csv")
    shares = []
    for seed in range(40):
        stays = drawn(trace, 8, seed).stays
        shares.append(sum(stay.until_s - stay.from_s for stay in stays) / trace.seconds)
    assert mean(shares) == pytest.approx(trace.mean_nodes() * 8 / 32, rel=0.05)


def test_a_pool_never_has_more_nodes_than_it_asks_for() -> None:
    schedule = drawn(read_trace("bamboo/gcp-a100x1-us-east1b.csv"), 3)
    moments = [stay.from_s for stay in schedule.stays]
    assert max(map(schedule.nodes_at, moments)) == 3


def test_nodes_with_names_stay_as_long_as_the_trace_says() -> None:
    lives = (Life(0.0, 30.0, True), Life(10.0, 100.0, False))
    trace = msgspec.structs.replace(FALLING, places=2, lives=lives)
    stays = drawn(trace, 2).stays
    assert [(stay.from_s, stay.until_s, stay.is_taken) for stay in stays] == [*lives]


def test_what_is_drawn_follows_from_the_seed() -> None:
    trace = read_trace("bamboo/gcp-v100x1-us-east1c.csv")
    assert drawn(trace, 8, 1) == drawn(trace, 8, 1) != drawn(trace, 8, 2)


def test_a_stretch_begins_with_the_nodes_that_are_there_and_takes_none_at_its_end() -> None:
    schedule = drawn(FALLING, 4, start_s=20.0, seconds=30.0)
    assert schedule.seconds == 30.0
    assert [stay.from_s for stay in schedule.stays] == [0.0] * 4
    assert sorted(stay.until_s for stay in schedule.stays) == [20.0, 20.0, 30.0, 30.0]


def test_only_a_node_that_is_taken_is_told_before() -> None:
    stays = drawn(FALLING, 4, notice_s=25.0).stays
    assert {(stay.is_taken, stay.notice_s) for stay in stays} == {(True, 25.0), (False, 0.0)}


def test_no_two_stays_have_the_same_name() -> None:
    names = [stay.node for stay in drawn(read_trace("bamboo/p3-trace.csv"), 32).stays]
    assert len(set(names)) == len(names)


def test_a_market_that_is_never_up_gives_no_nodes_to_a_pool_of_any_size() -> None:
    never = msgspec.structs.replace(FALLING, places=0, counts=(Count(0.0, 0),))
    assert drawn(never, 16).stays == ()


def test_a_stretch_beside_a_hole_can_be_had_and_one_with_it_not() -> None:
    assert drawn(HOLED, 4, start_s=60.0).seconds == 40.0
    with pytest.raises(UserError, match=r"no data from 0\.01 to 0\.02 h"):
        drawn(HOLED, 4)


def test_without_its_holes_a_trace_is_shorter_and_goes_on_after_them() -> None:
    trace = HOLED.without_holes()
    assert trace.counts == ((0.0, 4), (40.0, 2), (50.0, 3))
    assert (trace.seconds, trace.holes) == (90.0, ())
    assert "1 hole in the data left out" in trace.remarks[0]
    assert all(after.at_s > before.at_s for before, after in pairwise(trace.counts))


@pytest.mark.parametrize(
    ("pool", "stretch", "said"),
    [
        (5, {}, "never had more than 4 nodes"),
        (0, {}, "must be 1 at least"),
        (4, {"start_s": 100.0}, "is not within the trace"),
        (4, {"start_s": 0.0, "seconds": 101.0}, "is not within the trace"),
    ],
)
def test_what_the_market_never_had_is_refused(
    pool: int, stretch: dict[str, float], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        drawn(FALLING, pool, **stretch)
