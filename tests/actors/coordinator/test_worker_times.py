"""What the workers of a session did: times by pool and state, and a pace."""

from __future__ import annotations

import pytest

from spotlight.actors.coordinator.session.worker_times import RecentPace, WorkerTimes
from spotlight.record.run_events import WorkerStateBegan
from spotlight.types import WorkerState


def began(worker: str, state: WorkerState, pool: str = "spot") -> WorkerStateBegan:
    return WorkerStateBegan(worker=worker, node="n", pool=pool, state=state, scoring_s=0.0)


def test_states_add_up_to_the_time_for_which_workers_were_there() -> None:
    times = WorkerTimes()
    times.note(began("a", "loading"), 10.0)
    times.note(began("b", "idle", "reserved"), 10.0)
    times.note(began("a", "rollout"), 13.0)
    times.note(began("a", "gone"), 20.0)
    reserved, spot = times.use(25.0)
    assert (spot.pool, spot.seconds) == ("spot", {"loading": 3.0, "rollout": 7.0})
    assert (reserved.pool, reserved.seconds) == ("reserved", {"idle": 15.0})
    assert times.use(26.0)[0].seconds == {"idle": 16.0}, "it goes on"


def test_a_pace_is_that_of_the_last_minute() -> None:
    pace = RecentPace(0.0)
    assert pace.images_per_s(0.0) == 0.0
    pace.note(30, 10.0)
    assert pace.images_per_s(15.0) == pytest.approx(2.0), "since the beginning"
    pace.note(60, 100.0)
    assert pace.images_per_s(110.0) == pytest.approx(1.0)
