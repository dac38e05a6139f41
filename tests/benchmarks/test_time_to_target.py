import pytest

from benchmarks.time_to_target import milestones, score_at, smoothed, time_to

LINE = [(10.0 * step, step / 10) for step in range(11)]


def test_a_point_is_the_mean_of_three_in_time_and_in_score() -> None:
    assert smoothed([(0, 0.0), (1, 0.3), (2, 0.6), (6, 0.9)]) == [
        (1, pytest.approx(0.3)),
        (3, pytest.approx(0.6)),
    ]


def test_one_lucky_validation_does_not_reach_the_target() -> None:
    assert time_to(0.5, [(0, 0.0), (1, 0.9), (2, 0.0), (3, 0.0)]) is None


def test_a_run_may_reach_its_own_target_before_its_end() -> None:
    plateau = [(time_s, min(score, 0.5)) for time_s, score in LINE]
    assert milestones(plateau)[95] == pytest.approx(0.1 + 0.95 * 0.4)
    assert time_to(0.5, plateau) == 60.0


def test_a_target_that_is_never_reached_has_no_time() -> None:
    assert time_to(2.0, LINE) is None
    assert time_to(0.5, LINE[:2]) is None


def test_how_often_a_run_is_validated_does_not_matter() -> None:
    assert time_to(0.55, LINE) == pytest.approx(55.0)
    assert time_to(0.55, LINE[::2]) == pytest.approx(55.0)


def test_a_target_below_the_beginning_is_reached_there() -> None:
    assert time_to(0.0, LINE) == 10.0


def test_milestones_are_on_the_way_from_the_first_score_to_the_last() -> None:
    found = milestones(LINE)  # from 0.1 to 0.9, smoothed
    assert found == pytest.approx({25: 0.3, 50: 0.5, 75: 0.7, 95: 0.86})


def test_a_run_that_learned_nothing_has_no_milestones() -> None:
    assert milestones([(time_s, 1 - score) for time_s, score in LINE]) == {}


def test_a_curve_that_has_ended_keeps_its_score() -> None:
    line = [(1.0, 0.2), (2.0, 0.4)]
    found = [score_at(time_s, line) for time_s in (0.0, 1.0, 1.5, 3.0)]
    assert found == pytest.approx([0.2, 0.2, 0.3, 0.4])
