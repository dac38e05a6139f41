import pytest

from benchmarks.speedups import Run, compare, median_ratio, ratio
from benchmarks.testbed_figures import idle_share
from spotlight.report.lanes import Interval, Worker


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


def rising(slope: float, until: float) -> Run:
    """A run that gains `slope` in ten seconds, up to a plateau."""
    points = [(10.0 * step, min(step * slope, until)) for step in range(21)]
    return {"validation": [{"time_s": time_s, "score": score} for time_s, score in points]}


def test_the_better_end_without_exploration_is_the_target_of_all() -> None:
    runs = {
        ("ocr", "reserved", 1): rising(0.1, until=0.4),
        ("ocr", "rollouts", 1): rising(0.1, until=0.8),
        ("ocr", "spotlight", 1): rising(0.2, until=1.0),
    }
    figures = compare("testbed", runs, ["ocr"], [1], {"speedup": ("reserved", "rollouts")})
    assert figures["time_to_target_testbed[ocr]"] == [
        {
            "seed": 1,
            "target": 0.8,
            "seconds": {"reserved": None, "rollouts": 90.0, "spotlight": 40.0},
        }
    ]
    assert figures["speedup[ocr]"] == figures["speedup_on_the_way_testbed[ocr]"]["100 %"] == 2.25


def test_only_idle_time_inside_the_spans_counts_as_idle() -> None:
    worker = Worker("spot-0/0")
    worker.pool = "spot"
    states = [
        (worker, Interval("rollout", 0, 10)),
        (worker, Interval("idle", 10, 14)),
        (worker, Interval("explore", 14, 30)),
    ]
    assert idle_share(states, [(12, 22)]) == pytest.approx(0.2)
    assert idle_share(states, [(0, 10)]) == 0.0
    assert idle_share([], [(0, 10)]) == 0.0
