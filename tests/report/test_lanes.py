"""What every worker did, and how much of it is kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sample_run import RESERVED, SPOT, RunWriter

from spotlight.record.ledger import Ledger, Milliseconds, NodeBill, RollupLine
from spotlight.report.lanes import MOST_INTERVALS, STATES, Coarse, Interval, WorkerStates, lanes
from spotlight.report.run_reading import read_run
from spotlight.store.ledger_file import write_ledger
from spotlight.store.rollups import Rollups

PIECES = st.lists(
    st.tuples(st.sampled_from((*STATES, "")), st.integers(1, 50)), min_size=1, max_size=80
).filter(lambda pieces: any(state for state, _ in pieces))


def intervals_of(pieces: Sequence[tuple[str, int]]) -> list[Interval]:
    """One after the other; nobody is there in pieces without a state."""
    intervals, now = [], 3.0
    for state, length in pieces:
        if state:
            intervals.append(Interval(state, now, now + length))
        now += length
    return intervals


def coarse(intervals: Sequence[Interval], bins: int) -> tuple[Interval, ...]:
    it = Coarse(intervals[0].start, intervals[-1].end, bins)
    for interval in intervals:
        it.add(interval)
    return it.result()


@given(PIECES, st.integers(1, 40))
def test_coarse_intervals_are_few_in_order_and_inside(
    pieces: list[tuple[str, int]], bins: int
) -> None:
    intervals = intervals_of(pieces)
    some = coarse(intervals, bins)
    assert len(some) <= bins
    assert {one.state for one in some} <= {one.state for one in intervals}
    edges = [edge for one in some for edge in (one.start, one.end)]
    assert edges == sorted(edges)
    assert not edges or (edges[0] >= intervals[0].start and edges[-1] <= intervals[-1].end + 1e-6)


@given(PIECES, st.integers(1, 40))
def test_a_coarse_interval_has_the_state_that_fills_most_of_it(
    pieces: list[tuple[str, int]], bins: int
) -> None:
    intervals = intervals_of(pieces)
    for one in coarse(intervals, bins):
        filled = dict.fromkeys(STATES, 0.0)
        for each in intervals:
            filled[each.state] += max(0.0, min(one.end, each.end) - max(one.start, each.start))
        assert filled[one.state] >= max(filled.values()) - 1e-6
        assert sum(filled.values()) >= (one.end - one.start) / 2 - 1e-6


def test_of_a_long_run_no_more_is_kept_than_can_be_seen(run: RunWriter) -> None:
    rng, changes = random.Random(0), 3 * MOST_INTERVALS
    for number in range(changes):
        run.state(SPOT, float(number), ("rollout", "idle", "explore")[number % 3])
    run.state(RESERVED, rng.random(), "train")
    run.event("run_finished", float(changes), outcome="finished")
    record = read_run(run.folder)
    reserved, spot = lanes(record, close_up=(100.5, 103.5))
    assert len(spot.intervals) <= MOST_INTERVALS
    assert spot.seconds["rollout"] == spot.seconds["explore"] == MOST_INTERVALS
    assert spot.close == tuple(
        Interval(state, 100.0 + number, 101.0 + number)
        for number, state in enumerate(("idle", "explore", "rollout", "idle"))
    )
    assert len(reserved.intervals) == len(reserved.close) == 1
    assert not [event for event in record.events if event.name == "worker_state"]


def test_all_intervals_can_be_read_one_by_one(run: RunWriter) -> None:
    for number in range(2 * MOST_INTERVALS):
        run.state(SPOT, float(number), "rollout" if number % 2 else "idle")
    run.event("run_finished", 2.0 * MOST_INTERVALS)
    found = [interval for _, interval in WorkerStates(read_run(run.folder))]
    assert len(found) == 2 * MOST_INTERVALS
    assert all(interval.end - interval.start == 1.0 for interval in found)


def test_what_was_written_a_little_late_is_put_in_order(run: RunWriter) -> None:
    run.state(SPOT, 2.0, "rollout")
    run.state(SPOT, 1.0, "loading")
    run.event("run_finished", 3.0)
    (lane,) = lanes(read_run(run.folder))
    assert lane.intervals == (Interval("loading", 1.0, 2.0), Interval("rollout", 2.0, 3.0))


def test_what_is_written_while_the_run_is_read_waits_for_the_next_time(run: RunWriter) -> None:
    run.state(SPOT, 1.0, "rollout")
    run.event("phase", 2.0, phase="rollout")
    record = read_run(run.folder)
    run.state(SPOT, 5.0, "idle")
    (lane,) = lanes(record)
    assert lane.intervals == (Interval("rollout", 1.0, 2.0),)


def test_workers_of_a_killed_run_end_where_it_is_resumed(run: RunWriter) -> None:
    run.event("run_started", 0.0)
    run.state(RESERVED, 1.0, "train")
    run.event("run_started", 5.0, resumed_from_iteration=1)
    run.state(RESERVED, 6.0, "starting")
    run.event("run_finished", 8.0, outcome="finished")
    (lane,) = lanes(read_run(run.folder))
    assert lane.intervals == (Interval("train", 1.0, 5.0), Interval("starting", 6.0, 8.0))


def bill(name: str, times: dict[str, Milliseconds], **others: Any) -> NodeBill:
    its = {"node": name, "pool": "spot", "process": "p", "workers": 1, "from_at": 0.0, "to_at": 1.0}
    return NodeBill(times=times, **its | others)


def test_the_time_of_workers_is_that_of_the_ledger(run: RunWriter) -> None:
    run.state(SPOT, 1.0, "rollout")
    run.event("run_finished", 3.0)
    mine = {"spot-0/0": {"rollout": 4000, "lost": 500}}
    bills = (
        bill("spot-0", mine),
        bill("spot-0", mine),
        bill("gone", {"gone/0": {"starting": 250}}),
    )
    write_ledger(run.folder, Ledger(number=1, bills=bills))
    gone, spot = lanes(read_run(run.folder))
    assert {state: value for state, value in spot.seconds.items() if value} == {
        "rollout": 8.0,
        "lost": 1.0,
    }
    assert spot.intervals == (Interval("rollout", 1.0, 3.0),)
    assert (gone.worker, gone.node, gone.pool, gone.intervals) == ("gone/0", "gone", "spot", ())
    assert gone.seconds["starting"] == 0.25


def test_what_a_run_did_before_it_had_a_ledger_counts_too(run: RunWriter) -> None:
    run.event("run_started", 0.0)
    run.event("worker_state", 1.0, **SPOT, state="rollout")
    run.event("run_started", 5.0, resumed_from_iteration=1)
    run.state(SPOT, 6.0, "idle")
    run.event("run_finished", 8.0, outcome="finished")
    ledger = Ledger(number=3, bills=(bill("spot-0", {"spot-0/0": {"idle": 1500}}),))
    write_ledger(run.folder, ledger)
    (lane,) = lanes(read_run(run.folder))
    assert {state: value for state, value in lane.seconds.items() if value} == {
        "rollout": 4.0,
        "idle": 1.5,
    }
    assert lane.intervals == (Interval("rollout", 1.0, 5.0), Interval("idle", 6.0, 8.0))


def test_before_the_last_hour_lanes_are_drawn_from_roll_ups(run: RunWriter) -> None:
    rollups = Rollups(run.folder / "rollups")
    for number in range(1, 101):
        state, other = ("rollout", "idle") if number <= 60 else ("idle", "rollout")
        times = {"spot-0/0": {state: 9000, other: 1000}, "gone/0": {"train": 5000}}
        start_s = 10.0 * (number - 1)
        rollups.append(
            RollupLine(
                number=number,
                start_s=start_s,
                end_s=start_s + 10.0,
                at=start_s,
                times=times if number < 20 else {"spot-0/0": times["spot-0/0"]},
            )
        )
    rollups.close()
    write_ledger(run.folder, Ledger(number=100, bills=(bill("gone", {"gone/0": {"train": 1}}),)))
    run.state(SPOT, 900.0, "idle")
    run.event("run_finished", 1000.0)
    gone, spot = lanes(read_run(run.folder))
    assert gone.intervals == (Interval("train", 0.0, 190.0),)
    assert spot.intervals == (
        Interval("rollout", 0.0, 600.0),
        Interval("idle", 600.0, 900.0),
        Interval("idle", 900.0, 1000.0),
    )


def test_the_reserved_pool_comes_first(finished_run: Path) -> None:
    assert [lane.worker for lane in lanes(read_run(finished_run))] == [
        "reserved-0/0",
        "spot-0/0",
        "spot-1/0",
    ]


def test_workers_are_in_the_order_that_people_count(run: RunWriter) -> None:
    for number in (10, 2, 1):
        run.state({**SPOT, "worker": f"spot-{number}/0"}, 0.0, "idle")
    names = [lane.worker for lane in lanes(read_run(run.folder))]
    assert names == ["spot-1/0", "spot-2/0", "spot-10/0"]
