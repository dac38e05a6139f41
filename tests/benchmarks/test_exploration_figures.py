import pytest

from benchmarks.speedups import median_ratio, ratio
from benchmarks.testbed_figures import _idle_share
from spotlight.web.figures import Interval, Lane


def test_a_speedup_is_over_the_fastest_rival() -> None:
    times = {
        "spotlight": 50.0,
        "reserved": 300.0,
        "rollouts": 200.0,
        "inline": None,
        "uniform": 9.0,
    }
    assert ratio(times, ["reserved", "rollouts", "inline"]) == 4.0


def test_a_run_that_never_arrives_has_a_speedup_of_nothing() -> None:
    assert ratio({"spotlight": None, "inline": 300.0}, ["inline"]) == 0.0
    assert ratio({"spotlight": None, "inline": None}, ["inline"]) == 0.0


def test_there_is_no_speedup_over_a_rival_that_never_arrives() -> None:
    assert ratio({"spotlight": 50.0, "inline": None}, ["inline"]) is None


@pytest.mark.parametrize(
    ("ratios", "middle"),
    [([2.0, None, 1.0], 2.0), ([0.0, 2.0, 3.0], 2.0), ([1.0, 3.0], 1.0), ([None, None, 1.0], None)],
)
def test_rivals_that_never_arrive_count_as_the_slowest(
    ratios: list[float | None], middle: float | None
) -> None:
    assert median_ratio(ratios) == middle


def test_only_idle_time_inside_the_spans_counts_as_idle() -> None:
    worker = Lane(
        "spot-0/0",
        "spot-0",
        "spot",
        (Interval("rollout", 0, 10), Interval("idle", 10, 14), Interval("explore", 14, 30)),
    )
    assert _idle_share([worker], [(12, 22)]) == pytest.approx(0.2)
    assert _idle_share([worker], [(0, 10)]) == 0.0
    assert _idle_share([], [(0, 10)]) == 0.0
