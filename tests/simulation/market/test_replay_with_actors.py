"""The real coordinator and nodes on a spot market."""

from __future__ import annotations

import pytest
from market_kit import PRICES, job, profile, schedule, stay

from spotlight.errors import UserError
from spotlight_simulation.market.market_fleet import Crash
from spotlight_simulation.market.outcome import Outcome
from spotlight_simulation.market.replay_by_model import replay_by_model
from spotlight_simulation.market.replay_with_actors import replay_with_actors
from spotlight_simulation.market.schedule import Schedule
from spotlight_simulation.memory_cluster import COORDINATOR

BOOT_S = 60.0
LOSSES = schedule(
    stay("spot-a", 0.0, 600.0, is_taken=False),
    stay("spot-b", 0.0, 300.0),
    stay("spot-c", 100.0, 400.0, notice_s=0.0),
    stay("spot-d", 320.0, 350.0),
)
"""One stays, one has notice, one has none, and one is taken while it boots."""


def replayed(market: Schedule, *crashes: Crash, **changes: object) -> Outcome:
    made = job(**changes)
    return replay_with_actors(market, PRICES, profile(), made, boot_s=BOOT_S, crashes=crashes)


@pytest.fixture(scope="module")
def with_losses() -> Outcome:
    return replayed(LOSSES)


def test_nothing_happens_that_must_not_when_nodes_are_taken(with_losses: Outcome) -> None:
    assert with_losses.violations == ()
    assert with_losses.iterations > 5


def test_the_ledger_bills_every_node_from_its_start_until_it_is_taken(
    with_losses: Outcome,
) -> None:
    spot_s = 2 * (600 + 300 + 300 + 30)
    billed = (4 * 600 * PRICES.reserved_per_gpu_hour + spot_s * PRICES.spot_per_gpu_hour) / 3600
    assert with_losses.money == pytest.approx(billed, rel=0.002)


def test_booting_is_time_that_is_lost(with_losses: Outcome) -> None:
    assert with_losses.lost_s >= 2 * (3 * BOOT_S + 30)


def test_the_shares_of_the_time_are_those_of_the_schedule(with_losses: Outcome) -> None:
    assert with_losses.nodes_share == pytest.approx((0.0, 200 / 600, 170 / 600, 230 / 600, 0.0))
    assert with_losses.losses == 3


def test_both_depths_agree_on_dollars_and_nearly_on_iterations(with_losses: Outcome) -> None:
    model = replay_by_model(LOSSES, PRICES, profile(), job(), boot_s=BOOT_S)
    assert model.money == pytest.approx(with_losses.money, rel=0.002)
    assert abs(model.iterations - with_losses.iterations) < 3
    assert model.nodes_share == with_losses.nodes_share


def test_both_depths_train_as_long_as_a_job_with_half_of_the_ranks_takes() -> None:
    market = schedule(stay("spot-a", 0.0, 600.0, is_taken=False))
    deep = replayed(market, training={"ranks": 2})
    model = replay_by_model(market, PRICES, profile(), job(training={"ranks": 2}), boot_s=BOOT_S)
    assert abs(model.iterations - deep.iterations) < 2
    assert model.previews_per_sample == pytest.approx(deep.previews_per_sample, rel=0.2)


def test_a_job_that_is_done_ends_the_replay_and_the_bill() -> None:
    short = replayed(schedule(seconds=3600.0), iterations=2, validation={"every": 2})
    assert (short.iterations, short.is_finished, short.violations) == (2, True, ())
    assert short.hours < 0.5
    assert short.money == pytest.approx(4 * short.hours * PRICES.reserved_per_gpu_hour, rel=0.02)


def test_a_market_that_is_never_up_leaves_the_reserved_gpus_to_themselves() -> None:
    never = replayed(schedule(seconds=300.0))
    assert (never.nodes_share[0], never.previews_per_sample, never.lost_s) == (1.0, 0.0, 0.0)
    assert never.iterations > 0


def test_a_market_goes_on_over_the_end_of_coordinator_and_nodes() -> None:
    crashes = Crash(120.0, COORDINATOR), Crash(200.0, "spot-a"), Crash(240.0, "reserved-0")
    outcome = replayed(LOSSES, *crashes)
    assert outcome.violations == ()
    assert outcome.iterations > 5


def test_a_job_that_is_refused_says_why() -> None:
    with pytest.raises(UserError, match="refused"):
        replayed(schedule(), model={"checkpoint": "builtin:nothing"})
