"""Paces by formulas."""

from __future__ import annotations

import math

import msgspec
import pytest

from benchmarks.exploration.clocks import Fleet, beside, in_turn
from benchmarks.markets.paces import best_paces, between, faster, fleets, less_trainers, timed
from spotlight_simulation.market.batch_model import Pace
from tests.benchmarks.exploration.made_up_work import WORK

WINDOW = msgspec.structs.replace(WORK, is_window=True)
MEASURED = [Pace(100.0, worth=0.5, previews=1.0), Pace(100.0, worth=1.0, previews=4.0)]


def test_without_any_gpu_nothing_is_done() -> None:
    (nobody,) = timed(in_turn, WINDOW, [Fleet(0, 0)])
    assert nobody.rate == 0.0


def test_fleets_begin_without_a_spot_node_of_two_gpus() -> None:
    assert fleets(2) == [Fleet(4, 0), Fleet(4, 2), Fleet(4, 4)]


def test_many_previews_are_taken_where_spot_gpus_have_the_time_for_them() -> None:
    many, few = best_paces(beside, WINDOW, MEASURED, [Fleet(4, 16), Fleet(4, 1)])
    assert (many.previews, many.iteration_s) == (4.0, 40.0)
    assert few.iteration_s > 40.0


def test_of_two_paces_the_one_that_does_more_in_a_second_is_the_faster() -> None:
    slow, fast = Pace(40.0, worth=0.5), Pace(60.0, worth=1.0)
    assert faster([slow], [fast]) == faster([fast], [slow]) == [fast]


def test_nobody_trains_before_there_are_as_many_nodes_as_train() -> None:
    usual = [Pace(90.0), Pace(60.0), Pace(45.0)]
    found = less_trainers(usual)
    assert [math.isinf(pace.iteration_s) for pace in found] == [True, True, False]
    assert found[2] == usual[0]


def test_between_two_measured_paces_there_is_a_straight_line() -> None:
    measured = {0: Pace(90.0, 0.5, 2.0), 2: Pace(40.0, 1.0, 4.0)}
    assert between(measured, 1) == Pace(65.0, 0.75, 3.0)
    assert between(measured, 3).iteration_s == pytest.approx(40.0)
