"""A run on a spot market by formulas."""

from __future__ import annotations

import random

import pytest
from market_kit import job

from benchmarks.exploration.cases import PROFILES, Case
from spotlight.errors import JobError
from spotlight_simulation.market.batch_model import (
    Market,
    Pace,
    Recovery,
    System,
    course,
    job_paces,
    unrolled,
)
from spotlight_simulation.market.schedule import Prices, Schedule, Stay
from spotlight_simulation.profile import load_profile

PRICES = Prices(name="test", currency="USD", reserved_per_gpu_hour=36.0, spot_per_gpu_hour=3.6)
SPOT = {"spot": {"nodes": 4, "workers": 2}}
PACES = (Pace(10.0), Pace(5.0), Pace(2.0))


def stay(from_s: float, until_s: float, *, is_taken: bool = True) -> Stay:
    return Stay(
        node=f"spot-{from_s:g}", from_s=from_s, until_s=until_s, notice_s=0.0, is_taken=is_taken
    )


def schedule(*stays: Stay, seconds: float = 1000.0) -> Schedule:
    return Schedule(market="test", is_held=True, pool=2, seconds=seconds, stays=stays)


def system(*, uses_spot: bool = True, partners: int = 0, **recovery: float) -> System:
    return System(
        name="test",
        reserved_gpus=4,
        paces=PACES,
        recovery=Recovery(partners=partners, **{"ready_s": 0.0, **recovery}),
        uses_spot=uses_spot,
    )


def test_a_run_goes_at_the_pace_of_the_nodes_that_there_are() -> None:
    run = course(system(), Market(schedule(stay(100, 200), stay(150, 400))))
    # 100 s with none, 50 s with one, 50 s with two, 200 s with one, then none again.
    assert run.done_at(400.0) == pytest.approx(10 + 10 + 25 + 40)
    assert run.seconds_to(85.0) == pytest.approx(400.0)
    assert run.done_at(1000.0) == pytest.approx(85 + 60)


def test_a_node_is_billed_from_its_start_and_works_when_it_is_ready() -> None:
    run = course(system(ready_s=30.0), Market(schedule(stay(100, 200))))
    assert run.done_at(200.0) == pytest.approx(130 / 10 + 70 / 5)
    assert run.spot_gpu_s(150.0) == 2 * 50
    assert run.cost(200.0, PRICES) == pytest.approx(4 * 200 * 0.01 + 2 * 100 * 0.001)


def test_a_node_that_is_taken_before_it_is_ready_costs_money_alone() -> None:
    never = course(system(ready_s=200.0, stop_at_loss_s=50.0), Market(schedule(stay(100, 200))))
    assert never.done_at(1000.0) == pytest.approx(100.0)
    assert never.spot_gpu_s(1000.0) == 2 * 100


def test_all_stop_for_a_loss_and_for_a_newcomer() -> None:
    run = course(system(stop_at_loss_s=20.0, stop_at_join_s=10.0), Market(schedule(stay(100, 200))))
    assert run.done_at(110.0) == pytest.approx(10.0)
    assert run.done_at(220.0) == pytest.approx(10 + 90 / 5)
    assert run.done_at(320.0) == pytest.approx(28 + 10)


def test_lost_work_is_taken_back_but_never_more_than_was_made_since_the_last_change() -> None:
    run = course(system(again_at_loss_s=40.0), Market(schedule(stay(100, 200))))
    assert run.done_at(200.0) == pytest.approx(10 + 20 - 8)
    short = course(system(again_at_loss_s=500.0), Market(schedule(stay(100, 200))))
    assert short.done_at(200.0) == pytest.approx(10.0)
    # What counts is when it was there for the first time.
    assert run.seconds_to(30.0) == pytest.approx(200.0)


def test_changes_at_the_same_moment_cost_as_one() -> None:
    both = course(system(stop_at_loss_s=20.0), Market(schedule(stay(0, 200), stay(0, 200))))
    assert both.done_at(220.0) == both.done_at(200.0) == pytest.approx(100.0)
    assert both.done_at(230.0) > both.done_at(220.0)


def test_checkpoints_take_their_share_of_the_time() -> None:
    run = course(system(checkpoint_s=5.0, checkpoint_every_s=15.0), Market(schedule()))
    assert run.done_at(1000.0) == pytest.approx(75.0)


def test_partners_of_a_lost_node_are_away_while_the_others_go_on() -> None:
    run = course(
        system(partners=1, partners_away_s=50.0),
        Market(schedule(stay(0, 100), stay(0, 1000, is_taken=False))),
    )
    assert run.done_at(100.0) == pytest.approx(50.0)
    assert run.done_at(150.0) == pytest.approx(50 + 5)
    assert run.done_at(250.0) == pytest.approx(55 + 20)


def test_without_spot_nodes_nobody_pays_or_waits_for_any() -> None:
    run = course(system(uses_spot=False, stop_at_loss_s=50.0), Market(schedule(stay(0, 100))))
    assert run.done_at(1000.0) == pytest.approx(100.0)
    assert run.spot_gpu_s(1000.0) == 0


def test_what_is_never_done_has_no_time() -> None:
    run = course(system(), Market(schedule()))
    assert run.seconds_to_each([50.0, 101.0, 0.0]) == [pytest.approx(500.0), None, 0.0]


def test_money_runs_out_at_the_moment_it_is_paid() -> None:
    run = course(system(), Market(schedule(stay(100, 600))))
    for seconds in (50.0, 300.0, 800.0):
        money = run.cost(seconds, PRICES)
        assert run.seconds_for(money, PRICES) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_a_run_that_is_stepped_through_second_by_second(seed: int) -> None:
    chance = random.Random(seed)
    stays = []
    for _ in range(6):
        from_s = float(chance.randrange(900))
        stays.append(stay(from_s, from_s + chance.randrange(1, 400)))
    stays = [each for each in stays if each.until_s < 1000]
    ready_s, at_loss_s, at_join_s = (chance.randrange(limit) for limit in (60, 30, 30))
    run = course(
        system(ready_s=ready_s, stop_at_loss_s=at_loss_s, stop_at_join_s=at_join_s),
        Market(schedule(*sorted(stays, key=lambda one: one.from_s))),
    )
    done = stopped_until = 0.0
    at_work = 0
    for second in range(1000):
        ready = [one for one in stays if one.from_s + ready_s < one.until_s]
        joined = [one for one in ready if one.from_s + ready_s == second]
        lost = [one for one in ready if one.until_s == second]
        at_work += len(joined) - len(lost)
        if second and (joined or lost):
            stop = at_loss_s if lost else at_join_s
            stopped_until = max(stopped_until, second + stop)
        if second >= stopped_until:
            done += PACES[min(at_work, 2)].rate
    assert run.done_at(1000.0) == pytest.approx(done)


def test_a_short_schedule_is_repeated_from_any_moment() -> None:
    short = schedule(stay(0, 60), stay(80, 100, is_taken=False), seconds=100.0)
    long = unrolled(short, start_s=50.0, seconds=250.0)
    assert long.seconds == 250.0
    # The one that nobody took goes on as the first of the next round.
    assert [(one.from_s, one.until_s, one.is_taken) for one in long.stays] == [
        (0.0, 10.0, True),
        (30.0, 110.0, True),
        (130.0, 210.0, True),
        (230.0, 250.0, False),
    ]
    assert len({one.node for one in long.stays}) == 4


@pytest.mark.parametrize("start_s", [0.0, 35.0, 99.0])
def test_a_repeated_schedule_has_the_nodes_of_the_first_round_in_every_round(
    start_s: float,
) -> None:
    short = schedule(stay(10, 60), stay(20, 100, is_taken=False), stay(0, 5), seconds=100.0)
    long = unrolled(short, start_s=start_s, seconds=400.0)
    for second in range(400):
        at_s = second + 0.5
        assert long.nodes_at(at_s) == short.nodes_at((start_s + at_s) % 100)


def test_nodes_with_which_the_next_round_does_not_begin_are_taken() -> None:
    two = stay(20, 100, is_taken=False), stay(30, 100, is_taken=False)
    short = schedule(stay(0, 5), *two, seconds=100.0)
    long = unrolled(short, start_s=10.0, seconds=110.0, notice_s=7.0)
    # One of the two goes on as the first of the next round; the other has no place there.
    assert [(one.until_s, one.is_taken, one.notice_s) for one in long.stays] == [
        (90.0, True, 7.0),
        (95.0, True, 0.0),
    ]


def test_previews_are_as_many_as_the_test_bed_of_four_nodes_makes() -> None:
    profile = load_profile(PROFILES["sol-rl-split"])
    for task, seen in (("ocr", 4.0), ("compositional", 2.7)):
        paces = job_paces(Case(task=task, rival="spotlight", seed=11).job(), profile, nodes=4)
        assert paces[4].previews == pytest.approx(seen, rel=0.03)
        assert paces[4].iteration_s == pytest.approx(40.6, rel=0.03)


@pytest.mark.parametrize(
    ("split", "nodes", "iteration_s", "previews"),
    [
        ("sol-rl-split", 0, 91.9, 2.54),
        ("sol-rl-split", 1, 61.1, 2.48),
        ("even-split", 4, 110.4, 1.5),
    ],
)
def test_training_waits_for_previews_where_nodes_are_few_as_the_real_coordinator_has_it(
    split: str, nodes: int, iteration_s: float, previews: float
) -> None:
    """The figures are of ten iterations of the simulated test-bed."""
    pace = job_paces(job(), load_profile(PROFILES[split]), nodes=nodes)[nodes]
    assert pace.iteration_s == pytest.approx(iteration_s, rel=0.03)
    assert pace.previews == pytest.approx(previews, rel=0.05)


def test_training_waits_for_nothing_where_spot_nodes_make_enough_beside_it() -> None:
    paces = job_paces(job(), load_profile(PROFILES["sol-rl-split"]), nodes=4)
    assert paces[2].iteration_s == paces[4].iteration_s
    assert paces[2].previews < paces[4].previews


def test_reserved_gpus_without_a_rank_make_previews_as_spot_gpus_do() -> None:
    profile = load_profile(PROFILES["sol-rl-split"])
    two_idle, none_idle = (
        job(training={"ranks": 2}, pools={"reserved": {"nodes": 1, "workers": workers}, **SPOT})
        for workers in (4, 2)
    )
    assert job_paces(two_idle, profile, nodes=1) == job_paces(none_idle, profile, nodes=2)[1:]


def test_a_job_that_does_not_train_on_previews_rolls_out_on_all_gpus() -> None:
    profile = load_profile(PROFILES["sol-rl-split"])
    trains_on_them, rolls_out, never_explores = (
        job_paces(job(exploration={"mode": mode, "reuse": reuse}), profile, nodes=4)
        for mode, reuse in (("uniform", True), ("uniform", False), ("none", False))
    )
    assert rolls_out[4].previews == trains_on_them[4].previews > 1
    assert never_explores[4].previews == 0
    assert never_explores[4].iteration_s == rolls_out[4].iteration_s
    assert trains_on_them[4].iteration_s < rolls_out[4].iteration_s < rolls_out[0].iteration_s


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"exploration": {"budget": "fixed"}}, "exploration.budget"),
        (
            {"exploration": {"finish": "previous", "reuse": False, "preview_steps": 2}},
            "exploration.finish",
        ),
        ({"training": {"slices": 4}}, "training.slices"),
    ],
    ids=["fixed", "finished", "slices"],
)
def test_a_job_that_the_formulas_are_not_of_is_refused(
    changes: dict[str, dict[str, object]], field: str
) -> None:
    with pytest.raises(JobError, match=f"^{field}: .*--depth actors"):
        job_paces(job(**changes), load_profile(PROFILES["sol-rl-split"]), nodes=4)
