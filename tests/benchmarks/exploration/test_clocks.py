"""The time of an iteration by formulas."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from benchmarks.exploration import clocks
from benchmarks.exploration.cases import PROFILES, Case
from benchmarks.exploration.clocks import Fleet
from benchmarks.exploration.kept_runs import RUNS
from benchmarks.exploration.testbed_runs import VirtualRuns
from spotlight_simulation.profile import load_profile
from tests.benchmarks.exploration import made_up_work

WORK = msgspec.structs.replace(made_up_work.WORK, denoised=32)
FLEET = Fleet(4, 8)

SIMULATED = [
    (Case(task="ocr", rival="reserved", seed=11), clocks.in_turn, Fleet(4, 0)),
    (Case(task="ocr", rival="data-parallel", seed=11), clocks.in_turn, Fleet(12, 0)),
    (Case(task="ocr", rival="published", seed=11), clocks.in_turn, Fleet(12, 0)),
    (Case(task="ocr", rival="rollouts", seed=11), clocks.spot_waits, FLEET),
    (Case(task="ocr", rival="inline", seed=13), clocks.spot_waits, FLEET),
    (Case(task="ocr", rival="pipelined", seed=11), clocks.beside, FLEET),
    (Case(task="ocr", rival="spotlight", seed=11), clocks.beside, FLEET),
    (Case(task="compositional", rival="reserved", seed=11), clocks.in_turn, Fleet(4, 0)),
    (Case(task="compositional", rival="spotlight", seed=11), clocks.beside, FLEET),
    (
        Case(task="ocr", rival="spotlight", seed=11, profile="even-split"),
        clocks.beside,
        FLEET,
    ),
    (
        Case(task="ocr", rival="data-parallel", seed=11, profile="even-split"),
        clocks.in_turn,
        Fleet(12, 0),
    ),
]


def _name(one: object) -> str:
    """The same in all processes that share the tests out."""
    return getattr(one, "__name__", str(one))[:40]


@pytest.mark.parametrize(("case", "clock", "fleet"), SIMULATED, ids=_name)
def test_a_clock_agrees_with_the_simulated_cluster(
    case: Case, clock: clocks.Clock, fleet: Fleet
) -> None:
    run = VirtualRuns(RUNS, quick=False).read(case)
    assert run is not None, f"{case.name} is not kept"
    (began_s, first, _), (ended_s, last, _) = run["validation"][0], run["validation"][-1]
    previews = run["totals"]["previews"] / (run["iterations"] - 1)
    work = clocks.work_of(case.job(), load_profile(PROFILES[case.profile]), previews)
    simulated_s = (ended_s - began_s) / (last - first)
    assert clock(work, fleet) == pytest.approx(simulated_s, rel=0.03)


def test_ranks_alone_take_what_their_rows_take() -> None:
    assert clocks.update_s(WORK, ranks=4, helpers=0) == 8 * 2.5


def test_rows_go_to_whoever_has_their_gradient_there_first() -> None:
    # Until 20 s a rank has 8 rows; a helper has what is done 2 s before that.
    work = msgspec.structs.replace(WORK, rows=8 + 7)
    assert clocks.update_s(work, ranks=1, helpers=1) == pytest.approx(20.0)


def test_gradients_come_one_after_the_other_over_the_link_of_the_ranks() -> None:
    work = msgspec.structs.replace(WORK, rows=8, taken_s=4.0)
    # A rank has 4 rows by 10 s; the first of many helpers has one there by 4.5 s, others 4 s apart.
    assert clocks.update_s(work, ranks=1, helpers=20) == pytest.approx(12.5)
    assert clocks.update_s(WORK, ranks=1, helpers=32) == pytest.approx(4.5)


def test_a_slower_link_lengthens_all_that_goes_over_it() -> None:
    slow = msgspec.structs.replace(WORK, weights_s=3.0, gradient_s=3.0, taken_s=0.3)
    quick = msgspec.structs.replace(WORK, taken_s=0.1)
    assert clocks.on_slower_link(clocks.elastic, 3.0)(quick, FLEET) == pytest.approx(
        clocks.elastic(slow, FLEET)
    )


def test_helpers_whose_link_is_too_slow_change_nothing() -> None:
    work = msgspec.structs.replace(WORK, gradient_s=100.0)
    assert clocks.update_s(work, ranks=4, helpers=8) == clocks.update_s(work, ranks=4, helpers=0)
    assert clocks.elastic(work, FLEET) == clocks.beside(work, FLEET)


def test_spot_gpus_that_train_are_never_worse_than_those_that_only_explore() -> None:
    for denoised in (0, 16, 64, 256):
        work = msgspec.structs.replace(WORK, denoised=denoised)
        assert clocks.elastic(work, FLEET) <= clocks.beside(work, FLEET)


def test_an_iteration_waits_for_its_previews_and_the_score_of_the_last() -> None:
    work = msgspec.structs.replace(WORK, denoised=24, denoise_s=20.0)
    # Eight spot GPUs have made 16 when four that have trained for 40 s make 4, and they 4 more.
    assert clocks.beside(work, FLEET) == 60.0 + work.score_s


def test_previews_of_a_window_are_carried_over() -> None:
    work = msgspec.structs.replace(WORK, denoised=12.5, denoise_s=1.0, is_window=True)
    assert clocks.denoised_at(work, [0.0, 0.0]) == pytest.approx(6.25)
    assert clocks.denoised_at(work, [0.0, 100.0]) == pytest.approx(12.5)


@pytest.mark.parametrize("lossy", [clocks.in_one_group, clocks.by_pull])
def test_losses_cost_time_on_spot_gpus_alone(
    lossy: Callable[[clocks.Clock], clocks.Clock],
) -> None:
    clock = lossy(clocks.in_turn)
    assert clock(WORK, Fleet(12, 0)) == clocks.in_turn(WORK, Fleet(12, 0))
    assert clock(WORK, Fleet(0, 12)) > clocks.in_turn(WORK, Fleet(0, 12))


def test_a_loss_costs_a_group_that_trains_together_more_than_work_by_pull() -> None:
    fleet = Fleet(0, 12)
    together = clocks.in_one_group(clocks.in_turn)(WORK, fleet)
    assert together > clocks.by_pull(clocks.in_turn)(WORK, fleet)


def test_chosen_seeds_are_finished_when_the_last_cheap_preview_has_its_score() -> None:
    work = msgspec.structs.replace(WORK, denoised=8, denoise_s=1.0, finished=4, finish_s=20.0)
    # Eight spot GPUs make one preview each, and four of them finish a seed each.
    assert clocks.denoised_at(work, [0.0] * 8) == 1.0 + work.score_s + 20.0
    assert clocks.denoised_at(work, [0.0] * 8 + [100.0] * 4) == 1.0 + work.score_s + 20.0
