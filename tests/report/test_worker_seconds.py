"""What every worker did: its seconds by state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sample_run import RESERVED, SPOT, RunWriter

from spotlight.record.ledger import Ledger, Milliseconds, NodeBill
from spotlight.report.run_reading import RunHistory, read_run
from spotlight.report.worker_seconds import Interval, WorkerStates, worker_seconds
from spotlight.store.ledger_file import write_ledger

MANY = 3000


def intervals(record: RunHistory) -> list[Interval]:
    """Of all workers, one after the other."""
    return [interval for _, interval in WorkerStates(record)]


def test_all_intervals_can_be_read_one_by_one(run: RunWriter) -> None:
    for number in range(MANY):
        run.state(SPOT, float(number), "rollout" if number % 2 else "idle")
    run.event("run_finished", float(MANY))
    found = intervals(read_run(run.folder))
    assert len(found) == MANY
    assert all(interval.end - interval.start == 1.0 for interval in found)


def test_what_was_written_a_little_late_is_put_in_order(run: RunWriter) -> None:
    run.state(SPOT, 2.0, "rollout")
    run.state(SPOT, 1.0, "loading")
    run.event("run_finished", 3.0)
    assert intervals(read_run(run.folder)) == [
        Interval("loading", 1.0, 2.0),
        Interval("rollout", 2.0, 3.0),
    ]


def test_what_is_written_while_the_run_is_read_waits_for_the_next_time(run: RunWriter) -> None:
    run.state(SPOT, 1.0, "rollout")
    run.event("phase", 2.0, phase="rollout")
    record = read_run(run.folder)
    run.state(SPOT, 5.0, "idle")
    assert intervals(record) == [Interval("rollout", 1.0, 2.0)]


def test_workers_of_a_killed_run_end_where_it_is_resumed(run: RunWriter) -> None:
    run.event("run_started", 0.0)
    run.state(RESERVED, 1.0, "train")
    run.event("run_started", 5.0, resumed_from_iteration=1)
    run.state(RESERVED, 6.0, "starting")
    run.event("run_finished", 8.0, outcome="finished")
    assert intervals(read_run(run.folder)) == [
        Interval("train", 1.0, 5.0),
        Interval("starting", 6.0, 8.0),
    ]


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
    gone, spot = worker_seconds(read_run(run.folder))
    assert {state: value for state, value in spot.seconds.items() if value} == {
        "rollout": 8.0,
        "lost": 1.0,
    }
    assert spot.seen_s == 2.0
    assert (gone.worker, gone.node, gone.pool, gone.seen_s) == ("gone/0", "gone", "spot", 0.0)
    assert gone.seconds["starting"] == 0.25


def test_what_a_run_did_before_it_had_a_ledger_counts_too(run: RunWriter) -> None:
    run.event("run_started", 0.0)
    run.event("worker_state", 1.0, **SPOT, state="rollout")
    run.event("run_started", 5.0, resumed_from_iteration=1)
    run.state(SPOT, 6.0, "idle")
    run.event("run_finished", 8.0, outcome="finished")
    ledger = Ledger(number=3, bills=(bill("spot-0", {"spot-0/0": {"idle": 1500}}),))
    write_ledger(run.folder, ledger)
    (worker,) = worker_seconds(read_run(run.folder))
    assert {state: value for state, value in worker.seconds.items() if value} == {
        "rollout": 4.0,
        "idle": 1.5,
    }
    assert worker.seen_s == 6.0


def test_the_reserved_pool_comes_first(finished_run: Path) -> None:
    assert [worker.worker for worker in worker_seconds(read_run(finished_run))] == [
        "reserved-0/0",
        "spot-0/0",
        "spot-1/0",
    ]


def test_workers_are_in_the_order_that_people_count(run: RunWriter) -> None:
    for number in (10, 2, 1):
        run.state({**SPOT, "worker": f"spot-{number}/0"}, 0.0, "idle")
    names = [worker.worker for worker in worker_seconds(read_run(run.folder))]
    assert names == ["spot-1/0", "spot-2/0", "spot-10/0"]
