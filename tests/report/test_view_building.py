"""The one record of what is shown of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sample_run import RunWriter, sample_job

from spotlight.errors import RunFolderError
from spotlight.record.ledger import Ledger, NodeBill, Price, RollupLine
from spotlight.record.run_events import (
    BudgetNear,
    CallbackTrouble,
    NodeJoined,
    NodeLost,
    NoticeReceived,
    PhaseBegan,
    RunEvent,
    RunFinished,
    RunStarted,
    WorkerStateBegan,
)
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.report.run_view import CURVES, MOST_BUCKETS, MOST_LANES, MOST_ROWS, RunView
from spotlight.report.view_building import MOST_HAPPENED, ViewBuilder, view_of

OLD = Path(__file__).parents[1] / "data/runs/0.1.0"


@pytest.fixture
def builder() -> ViewBuilder:
    return ViewBuilder(sample_job(iterations=8))


def _bill(**changes: Any) -> NodeBill:
    said: dict[str, Any] = {
        "node": "reserved-0",
        "pool": "reserved",
        "process": "a",
        "workers": 1,
        "from_at": 1000.0,
        "to_at": 4600.0,
        "price": Price(usd_per_gpu_hour=2.0, source="job"),
        "times": {"reserved-0/0": {"train": 2_700_000, "idle": 900_000}},
        **changes,
    }
    return NodeBill(**said)


def _column(view: RunView, name: str) -> list[float | None]:
    return [row[CURVES.index(name)] for row in view.rows]


# --- of a folder ---


def test_a_finished_run_is_shown_with_what_it_came_to(finished_run: Path) -> None:
    view = view_of(finished_run)
    assert (view.job.name, view.job.outcome, view.job.iteration) == ("ocr-tiny", "finished", 12)
    assert set(view.job.workers) == {"reserved", "spot"}
    assert view.validation.first == 0.3 and view.validation.latest == 0.83
    assert len(view.rows) == 13  # one for each version that made samples, and the last one
    assert [mark.kind for mark in view.marks] == ["lost"]
    assert [lane.name for lane in view.lanes] == ["reserved-0/0", "spot-0/0", "spot-1/0"]


def test_a_run_of_an_older_version_has_areas_from_the_states_of_its_workers() -> None:
    view = view_of(OLD)
    assert set(view.areas.pools) == {"reserved", "spot"}
    assert view.job.outcome == "unfinished" and view.job.iteration == 2
    assert view.money.spent is None


def test_a_run_that_only_began_is_shown(run: RunWriter) -> None:
    view = view_of(run.folder)
    assert view.rows == () and view.validation.latest is None and view.job.iteration == 0


def test_a_run_is_unfinished_once_nobody_wrote_anything_for_a_while(run: RunWriter) -> None:
    run.event("run_started", 0.0, job="ocr-tiny")
    written = (run.folder / "events.jsonl").stat().st_mtime
    assert view_of(run.folder, now=written + 1).job.outcome == "running"
    assert view_of(run.folder, now=written + 1000).job.outcome == "unfinished"


def test_a_torn_line_is_noted(run: RunWriter) -> None:
    run.event("run_started", 0.0, job="ocr-tiny")
    with (run.folder / "events.jsonl").open("a") as file:
        file.write('{"time_s": 1.0, "ev')
    assert view_of(run.folder).notes == ("events.jsonl: the last line is torn and was left out",)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"config\.yaml"):
        view_of(tmp_path)


def test_the_loss_s_own_metrics_are_among_the_curves(run: RunWriter) -> None:
    run.metric("iteration", 1.0, iteration=0, loss=0.5, kl=0.125)
    view = view_of(run.folder)
    assert (_column(view, "loss"), _column(view, "kl")) == ([0.5], [0.125])


def test_a_view_survives_json(finished_run: Path) -> None:
    view = view_of(finished_run)
    again = msgspec.json.decode(msgspec.json.encode(view), type=RunView)
    assert again == view
    assert "NaN" not in json.dumps(msgspec.to_builtins(view))


# --- as it grows ---


def test_an_iteration_that_is_made_again_takes_the_place_of_the_first(
    builder: ViewBuilder,
) -> None:
    for iteration, reward in ((0, 0.1), (1, 0.2), (1, 0.3)):
        builder.on_iteration(IterationMetrics(iteration=iteration, reward_mean=reward), {})
    assert _column(builder.view(), "reward") == [0.1, 0.3]


def test_a_long_run_has_the_means_of_neighbours(builder: ViewBuilder) -> None:
    many = 4 * MOST_ROWS
    for iteration in range(many):
        metrics = IterationMetrics(
            iteration=iteration, time_s=float(iteration), reward_mean=float(iteration % 2)
        )
        builder.on_iteration(metrics, {})
    view = builder.view()
    assert MOST_ROWS / 2 <= len(view.rows) <= MOST_ROWS
    assert set(_column(view, "reward")) == {0.5}
    times = [each or 0.0 for each in _column(view, "time_s")]
    assert times == sorted(times)


def test_a_validation_stands_beside_the_samples_of_the_same_weights(builder: ViewBuilder) -> None:
    builder.on_validation(ValidationMetrics(weights_version=0, score=0.2, time_s=1.0))
    builder.on_iteration(IterationMetrics(iteration=0, reward_mean=0.1, time_s=2.0), {})
    builder.on_iteration(IterationMetrics(iteration=1, reward_mean=0.3, time_s=3.0), {})
    builder.on_validation(ValidationMetrics(weights_version=1, score=0.4, time_s=3.5))
    view = builder.view()
    assert _column(view, "validation") == [0.2, 0.4]
    assert _column(view, "reward") == [0.1, 0.3]


def test_marks_and_what_happened_are_bounded(builder: ViewBuilder) -> None:
    builder.on_event(RunStarted(job="ocr-tiny"))
    for number in range(5000):
        builder.on_event(NodeLost(node=f"spot-{number}", pool="spot", time_s=float(number)))
    view = builder.view()
    assert len(view.happened) == MOST_HAPPENED
    assert len(view.marks) <= 256 and view.marks[0].text.endswith(" more")
    assert len(view.nodes) <= 256


def test_lanes_are_of_nodes_when_there_are_many_workers(builder: ViewBuilder) -> None:
    for number in range(MOST_LANES + 1):
        name = f"spot-{number // 8}/{number % 8}"
        builder.on_event(WorkerStateBegan(worker=name, state="rollout", pool="spot", time_s=1.0))
    builder.on_event(PhaseBegan(phase="rollout", time_s=9.0))
    lanes = builder.view().lanes
    assert [lane.name for lane in lanes][:2] == ["spot-0", "spot-1"]
    assert len(lanes) == 9


def test_a_thousand_nodes_are_shown_in_few_lanes_and_all_in_the_areas(
    builder: ViewBuilder,
) -> None:
    for number in range(1000):
        worker = f"spot-{number}/0"
        builder.on_event(WorkerStateBegan(worker=worker, state="explore", pool="spot"))
    builder.on_event(PhaseBegan(phase="rollout", time_s=60.0))
    view = builder.view()
    assert len(view.lanes) == MOST_LANES
    assert set(view.areas.pools["spot"]["explore"]) == {1000.0}
    assert len(view.areas.edges) <= MOST_BUCKETS + 1


def test_a_state_that_goes_on_is_shown_up_to_now(builder: ViewBuilder) -> None:
    builder.on_event(WorkerStateBegan(worker="spot-0/0", state="rollout", pool="spot", time_s=1.0))
    builder.on_event(PhaseBegan(phase="rollout", time_s=3.0))
    assert [lane.parts for lane in builder.view().lanes] == [((0, 1.0, 3.0),)]
    builder.on_event(PhaseBegan(phase="train", time_s=5.0))
    assert [lane.parts for lane in builder.view().lanes] == [((0, 1.0, 5.0),)]


def test_a_node_says_how_long_it_has_left(builder: ViewBuilder) -> None:
    builder.on_event(NodeJoined(node="spot-0", pool="spot", workers=("spot-0/0",), time_s=1.0))
    builder.on_event(NoticeReceived(node="spot-0", source="aws", lead_s=30.0, time_s=10.0))
    builder.on_event(PhaseBegan(phase="rollout", time_s=16.0))
    (node,) = builder.view().nodes
    assert (node.says, node.is_there, node.workers) == ("notice: 24 s left", True, 1)


def test_a_tracker_that_failed_is_an_alert_until_the_run_is_started_again(
    builder: ViewBuilder,
) -> None:
    trouble = CallbackTrouble(callback="wandb", failures=1, dropped=0, error="no\nnetwork")
    builder.on_event(trouble)
    assert builder.view().alerts == ("tracker wandb failed: no network",)
    builder.on_event(RunStarted(resumed_from_iteration=0))
    assert builder.view().alerts == ()


# --- time and money ---


def test_the_ledger_says_what_was_spent(builder: ViewBuilder) -> None:
    builder.ledger(Ledger(time_s=3600.0, at=4600.0, bills=(_bill(),)))
    view = builder.view()
    assert view.money.spent == pytest.approx(2.0)
    assert view.money.by_state["reserved"] == pytest.approx({"train": 1.5, "idle": 0.5})
    assert view.pools["reserved"].seconds == {"train": 2700.0, "idle": 900.0}
    (node,) = view.nodes
    assert node.usd_per_hour == 2.0 and node.usd == pytest.approx(2.0)


def test_what_has_no_price_is_unpriced_and_not_free(builder: ViewBuilder) -> None:
    builder.ledger(Ledger(bills=(_bill(price=None),)))
    money = builder.view().money
    assert money.spent is None and money.unpriced_s == 3600.0


def test_roll_ups_say_what_had_been_spent_at_each_row(builder: ViewBuilder) -> None:
    builder.ledger(Ledger(time_s=20.0, bills=(_bill(),)))
    for start in (0.0, 10.0):
        builder.rollup(
            RollupLine(
                number=1,
                start_s=start,
                end_s=start + 10.0,
                at=1010.0 + start,
                times={"reserved-0/0": {"train": 10_000}},
                spent={"reserved": 1.0 + start / 10},
            )
        )
    builder.on_iteration(IterationMetrics(iteration=0, time_s=5.0), {})
    builder.on_iteration(IterationMetrics(iteration=1, time_s=20.0), {})
    view = builder.view()
    assert _column(view, "usd") == [0.5, 2.0]
    assert view.areas.pools == {"reserved": {"train": (1.0,) * 80}}
    assert [lane.parts for lane in view.lanes] == [((2, 0.0, 20.0),)]


def test_the_end_of_a_run_leaves_nothing_to_wait_for(builder: ViewBuilder) -> None:
    builder.on_iteration(IterationMetrics(iteration=0, time_s=5.0), {})
    assert builder.view().validation.seconds_left == pytest.approx(35.0)
    builder.on_event(RunFinished(outcome="cancelled", reason="by a user", time_s=6.0))
    view = builder.view()
    assert view.validation.seconds_left is None
    assert (view.job.outcome, view.job.reason) == ("cancelled", "by a user")


def test_a_budget_of_which_much_is_used_is_an_alert(builder: ViewBuilder) -> None:
    builder.on_event(BudgetNear(budget="budget.usd", limit=5.0, said="$4.10 of the $5.00 are used"))
    assert builder.view().alerts == ("budget nearly spent: $4.10 of the $5.00 are used",)


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (
            NoticeReceived(node="spot-0", source="aws", lead_s=120.0),
            "info",
            "Notice: spot-0 (aws), 2 m 00 s before it goes",
        ),
        (
            CallbackTrouble(callback="wandb", failures=1, dropped=0, error="no\nnetwork"),
            "warning",
            "Tracker failed: wandb: no network",
        ),
        (
            RunFinished(outcome="failed", reason="no rewards"),
            "error",
            "Run ended: failed: no rewards",
        ),
    ],
    ids=["notice", "tracker", "end"],
)
def test_what_an_operator_wants_to_know_of_is_told(
    builder: ViewBuilder, event: RunEvent, level: str, text: str
) -> None:
    builder.on_event(event)
    (told,) = builder.view().happened
    assert (told.level, told.text) == (level, text)
