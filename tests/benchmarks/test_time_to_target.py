import pytest

from benchmarks.time_to_target import final_score, milestones, smoothed, time_to

LINE = [(10.0 * step, step / 10) for step in range(11)]


def test_a_point_is_the_mean_of_three_in_time_and_in_score() -> None:
    assert smoothed([(0, 0.0), (1, 0.3), (2, 0.6), (6, 0.9)]) == [
        (1, pytest.approx(0.3)),
        (3, pytest.approx(0.6)),
    ]


def test_one_lucky_validation_does_not_reach_the_target() -> None:
    assert time_to(0.5, [(0, 0.0), (1, 0.9), (2, 0.0), (3, 0.0)]) is None


def test_a_run_that_has_its_own_end_as_target_may_reach_it_earlier() -> None:
    plateau = [(time_s, min(score, 0.5)) for time_s, score in LINE]
    assert final_score(plateau) == 0.5
    assert time_to(final_score(plateau), plateau) == 60.0


def test_a_target_that_is_never_reached_has_no_time() -> None:
    assert time_to(2.0, LINE) is None


def test_milestones_are_on_the_way_from_the_first_score_to_the_last() -> None:
    found = milestones(LINE)  # from 0.1 to 0.9, smoothed
    assert list(found.values()) == pytest.approx([0.3, 0.5, 0.7, 0.9])
