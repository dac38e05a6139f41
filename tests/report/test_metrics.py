"""The figures of a run: what they count, and that times add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_run import RESERVED, SPOT, RunWriter

from spotlight.report.metrics import (
    read_run,
    summarise,
)


def test_the_summary_of_a_finished_run_counts_what_its_files_say(finished_run: Path) -> None:
    lines = (finished_run / "metrics.jsonl").read_text().splitlines()
    written = [line for line in map(json.loads, lines) if line["kind"] == "iteration"]
    summary = summarise(read_run(finished_run))
    assert summary["iterations"] == 12
    assert summary["samples"] == 12 * 64
    assert summary["previews"] == sum(line["previews"] for line in written)
    assert summary["previews_late"] == sum(line["previews_late"] for line in written)
    rollout_s = sum(line["rollout_s"] for line in written)
    assert summary["images_per_s"] == pytest.approx(12 * 64 / rollout_s)
    assert (summary["nodes_lost"], summary["requests_handed_on"]) == (1, 8)
    assert (summary["outcome"], summary["reason"]) == ("finished", "")
    assert summary["validation_start"] == 0.3
    assert summary["validation_end"] == summary["validation_best"] == pytest.approx(0.83)


def test_the_summary_is_json(finished_run: Path) -> None:
    summary = summarise(read_run(finished_run))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_the_states_of_a_worker_add_up_exactly_to_its_total(finished_run: Path) -> None:
    summary = summarise(read_run(finished_run))
    assert len(summary["workers"]) == 3
    for times in (*summary["workers"].values(), *summary["pools"].values()):
        assert sum(times["states"].values()) == times["seconds"] > 0
        assert sum(reversed(times["states"].values())) == times["seconds"]
        assert sum(times["share"].values()) == pytest.approx(1)
    for pool, times in summary["pools"].items():
        members = [one for one in summary["workers"].values() if one["pool"] == pool]
        assert sum(one["seconds"] for one in members) == times["seconds"]


def test_a_worker_is_counted_from_its_first_event_to_its_end(run: RunWriter) -> None:
    run.state(RESERVED, 1.0, "starting")
    run.state(RESERVED, 3.0, "rollout")
    run.state(RESERVED, 4.5, "gone")
    run.event("run_finished", 9.0, outcome="finished")
    times = summarise(read_run(run.folder))["workers"]["reserved-0/0"]
    assert times["seconds"] == 3.5
    assert {state: s for state, s in times["states"].items() if s} == {
        "starting": 2.0,
        "rollout": 1.5,
    }


def test_the_last_state_lasts_until_the_run_ends(run: RunWriter) -> None:
    run.state(RESERVED, 1.0, "idle")
    run.event("run_finished", 4.0, outcome="finished")
    assert summarise(read_run(run.folder))["workers"]["reserved-0/0"]["seconds"] == 3.0


@pytest.mark.parametrize(
    ("event", "fields"),
    [("worker_lost", {"worker": "spot-0/0"}), ("node_lost", {"node": "spot-0"})],
)
def test_a_lost_worker_does_nothing_more_even_if_it_never_said_so(
    run: RunWriter, event: str, fields: dict
) -> None:
    run.state(SPOT, 0.0, "explore")
    run.event(event, 2.0, **fields)
    run.event("run_finished", 9.0, outcome="finished")
    assert summarise(read_run(run.folder))["workers"]["spot-0/0"]["seconds"] == 2.0


def test_samples_from_before_a_restart_make_no_rollout_fast(run: RunWriter) -> None:
    run.metric("iteration", 5.0, iteration=0, samples=64, rollout_s=4.0, scoring_s=1.5)
    run.metric(
        "iteration",
        9.0,
        iteration=1,
        samples=64,
        samples_restored=40,
        samples_reused=20,
        rollout_s=1.0,
        scoring_s=0.5,
    )
    summary = summarise(read_run(run.folder))
    assert summary["images_per_s"] == pytest.approx((64 + 4) / 5.0)
    assert summary["scoring_s"] == 2.0


def test_scoring_counts_beside_the_states_it_goes_on_beside(run: RunWriter) -> None:
    run.metric("iteration", 5.0, iteration=0, scoring_s=1.0)
    run.state(SPOT, 0.0, "rollout")
    run.state_line(3.0, **SPOT, state="idle", scoring_s=1.5)
    run.state_line(4.0, **SPOT, state="idle", scoring_s=0.5)
    run.event("run_finished", 8.0, outcome="finished")
    summary = summarise(read_run(run.folder))
    spot = summary["pools"]["spot"]
    assert (spot["scoring_s"], spot["scoring_share"]) == (2.0, 0.25)
    assert sum(spot["states"].values()) == spot["seconds"] == 8.0, "each second has one state"
    assert summary["scoring_s"] == 2.0, "that of validation included"


def test_a_run_that_goes_on_is_unfinished_and_has_no_numbers_yet(run: RunWriter) -> None:
    run.event("run_started", 0.0)
    summary = summarise(read_run(run.folder))
    assert summary["outcome"] == "unfinished"
    assert summary["validation_end"] is None and summary["images_per_s"] is None


def test_a_resumed_run_is_judged_by_its_last_start(run: RunWriter) -> None:
    run.event("run_started", 0.0)
    run.event("run_finished", 3.0, outcome="cancelled", reason="asked to")
    assert summarise(read_run(run.folder))["outcome"] == "cancelled"
    run.event("run_started", 3.0, resumed_from_iteration=2)
    summary = summarise(read_run(run.folder))
    assert (summary["outcome"], summary["resumptions"]) == ("unfinished", 1)


def test_requests_are_counted_under_the_names_of_earlier_versions_too(run: RunWriter) -> None:
    run.event("worker_lost", 1.0, worker="a", requests_reissued={"rollout": 3})
    run.event("leases_expired", 2.0, items=4)
    assert summarise(read_run(run.folder))["requests_handed_on"] == 7


def test_requests_of_lost_workers_and_of_silent_ones_are_handed_on(run: RunWriter) -> None:
    run.event("worker_lost", 1.0, worker="a", requests_handed_on={"rollout": 3, "preview": 2})
    run.event("work_taken_back", 2.0, items=4)
    assert summarise(read_run(run.folder))["requests_handed_on"] == 9
