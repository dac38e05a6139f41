"""Ways to train on a spot market, and what losses cost them."""

from __future__ import annotations

import math

import pytest

from spotlight_simulation.market import rivals
from spotlight_simulation.market.batch_model import Market, Pace, System, course
from spotlight_simulation.market.rivals import COSTS, READY_S, START_S
from spotlight_simulation.market.schedule import Schedule, Stay

PACES = [Pace(100.0), Pace(50.0), Pace(25.0)]
HOUR = 3600.0


def market(*stays: tuple[float, float]) -> Schedule:
    """Ten hours; nodes from and until these hours."""
    made = [
        Stay(
            node=f"spot-{number}",
            from_s=from_h * HOUR,
            until_s=until_h * HOUR,
            notice_s=0.0,
            is_taken=until_h < 10,
        )
        for number, (from_h, until_h) in enumerate(stays)
    ]
    return Schedule(market="test", is_held=True, pool=2, seconds=10 * HOUR, stays=tuple(made))


STEADY = market((0, 10), (0, 10))
LOSSES = market((0, 10), (0, 2), (3, 5), (6, 9))


def done(system: System, schedule: Schedule) -> float:
    return course(system, Market(schedule)).done_at(10 * HOUR)


def all_of_them(schedule: Schedule) -> dict[str, System]:
    """With the same paces, so that only recovery differs."""
    return {
        "elastic": rivals.elastic("elastic", 4, PACES),
        "no commits": rivals.without_commits("no commits", 4, PACES, preview_s=20.0),
        "torchft": rivals.torchft("torchft", 4, PACES, update_s=10.0),
        "memory": rivals.from_memory("memory", 4, PACES, iteration_s=25.0),
        "groups": rivals.without_elastic_groups("groups", 4, PACES),
        "batches": rivals.lost_batches("batches", 4, PACES, batch_s=5.0, share=0.5),
        "torchrun": rivals.torchrun("torchrun", 4, PACES, schedule),
        "trainers": rivals.trainers_on_spot("trainers", PACES, schedule),
    }


def test_a_cost_has_a_source_and_takes_time() -> None:
    assert all(one.seconds > 0 and one.source for one in COSTS.values())


def test_a_node_works_when_it_has_booted_started_and_loaded() -> None:
    parts = [COSTS[name].seconds for name in ("boot", "process", "load")]
    assert math.isclose(READY_S, sum(parts))
    assert math.isclose(START_S, sum(parts[1:]))


@pytest.mark.parametrize("name", [name for name in all_of_them(LOSSES) if name != "elastic"])
def test_losses_cost_everybody_more_than_elastic_work_by_pull(name: str) -> None:
    made = all_of_them(LOSSES)
    assert done(made[name], LOSSES) < done(made["elastic"], LOSSES)


def test_on_steady_nodes_only_checkpoints_and_the_first_start_cost_anything() -> None:
    made = all_of_them(STEADY)
    most = done(made["elastic"], STEADY)
    for name, system in made.items():
        assert done(system, STEADY) == pytest.approx(most, rel=0.02), name


def test_a_restart_of_all_costs_more_than_going_on_with_those_that_are_left() -> None:
    made = all_of_them(LOSSES)
    assert done(made["torchrun"], LOSSES) < done(made["torchft"], LOSSES)


def test_trainers_on_spot_are_missed_for_the_patience_of_the_job() -> None:
    recovery = rivals.trainers_on_spot("trainers", PACES, LOSSES).recovery
    assert recovery.stop_at_loss_s > COSTS["patience"].seconds


def test_trainers_on_spot_do_not_stop_for_newcomers() -> None:
    recovery = rivals.trainers_on_spot("trainers", PACES, LOSSES).recovery
    assert recovery.stop_at_join_s == recovery.again_at_join_s == 0


def test_trainers_on_spot_pay_for_no_reserved_gpu() -> None:
    assert rivals.trainers_on_spot("trainers", PACES, LOSSES).reserved_gpus == 0


def test_checkpoints_are_written_more_often_where_nodes_are_lost_more_often() -> None:
    often = market(*((hour / 2, hour / 2 + 0.4) for hour in range(20)))
    seldom, frequent = (
        rivals.torchrun("torchrun", 4, PACES, each).recovery for each in (LOSSES, often)
    )
    assert frequent.checkpoint_every_s < seldom.checkpoint_every_s


def test_the_interval_of_checkpoints_is_hard_to_beat_by_any_other() -> None:
    best = rivals.torchrun("torchrun", 4, PACES, LOSSES).recovery
    changes = 7  # three losses, and newcomers at four moments

    def wasted(every_s: float) -> float:
        return best.checkpoint_s / every_s + changes * every_s / 2 / LOSSES.seconds

    assert all(
        wasted(best.checkpoint_every_s) <= wasted(factor * best.checkpoint_every_s) * 1.02
        for factor in (0.5, 0.8, 1.25, 2.0)
    )


def test_gpus_on_demand_go_on_whatever_the_market_does() -> None:
    system = rivals.on_demand("reserved", 4, Pace(50.0))
    assert done(system, LOSSES) == pytest.approx(10 * HOUR / 50)
    assert course(system, Market(LOSSES)).spot_gpu_s(10 * HOUR) == 0
