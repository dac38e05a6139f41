"""What happened to a run, told in lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.record.run_events import NodeLost, PhaseBegan, RunEvent, RunFinished, RunStarted
from spotlight.record.run_metrics import IterationMetrics, RunMetrics, ValidationMetrics
from spotlight.report.run_reading import read_run
from spotlight.report.story import line_of


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (RunStarted(time_s=1.0, job="signs"), "    0:01  Run started           signs"),
        (
            RunStarted(time_s=61.0, job="signs", resumed_from_iteration=3),
            "    1:01  Run resumed           from iteration 3",
        ),
        (
            IterationMetrics(
                time_s=90.0, iteration=3, reward_mean=0.5, rollout_s=12.0, train_s=20.0, previews=9
            ),
            "    1:30  Iteration 3           reward 0.500, rollout 12 s, training 20 s, 9 previews",
        ),
        (
            ValidationMetrics(time_s=3661.0, weights_version=4, score=0.25, images=32),
            " 1:01:01  Validation            0.250 over 32 images, version 4",
        ),
        (
            NodeLost(time_s=2.0, node="spot-1", pool="spot", reason="it is gone"),
            "    0:02  Node lost             spot-1 (spot): it is gone",
        ),
        (
            RunFinished(time_s=5.0, outcome="failed", reason="no rewards"),
            "    0:05  Run ended             failed: no rewards",
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_matters_is_told(record: RunEvent | RunMetrics, line: str) -> None:
    assert str(line_of(record)) == line


def test_a_loss_says_that_it_is_one() -> None:
    lost = line_of(NodeLost(node="spot-1"))
    assert lost is not None and lost.is_loss


def test_what_a_run_does_all_the_time_is_not_told() -> None:
    assert line_of(PhaseBegan(phase="train")) is None


def test_a_whole_run_is_told_in_far_fewer_lines_than_it_wrote(finished_run: Path) -> None:
    run = read_run(finished_run)
    told = [line for event in run.events if (line := line_of(event)) is not None]
    assert 0 < len(told) < len(run.events)
