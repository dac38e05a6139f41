import pytest

from benchmarks.testbed_figures import idle_share
from spotlight.report.worker_seconds import Interval, Worker


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
