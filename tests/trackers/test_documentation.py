"""The examples of docs/trackers.md are what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import spotlight
from spotlight.record.run_events import NodeLost, RunStarted
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from tests.small_run import small_job

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "trackers.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"(?s)```{language}\n(.*?)```", PAGE)
    return str(found)


def test_the_trackers_can_stand_in_a_job() -> None:
    job = small_job(**yaml.safe_load(block("yaml")))
    assert len(job.trackers) == 3


def test_the_callback_prints_and_ends_a_job_that_has_learnt_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []
    summary = spotlight.RunSummary(
        outcome="finished",
        reason="",
        run_folder=Path("runs/x"),
        iterations=1,
        seconds=1.0,
        samples=8,
        images_per_s=None,
        reward_start=None,
        reward_end=None,
        validation_start=None,
        validation_end=None,
        validation_best=0.5,
        exported_iteration=1,
        callback_troubles=(),
    )

    def run_blocking(job: str, callbacks: list[spotlight.Callback]) -> spotlight.RunSummary:
        given.extend([job, *callbacks])
        return summary

    monkeypatch.setattr(spotlight, "run_blocking", run_blocking, raising=False)
    exec(compile(block("python"), "docs/trackers.md", "exec"), {"__name__": "__main__"})

    job, callback = given
    assert (ROOT / job).exists()
    callback.on_event(RunStarted())
    callback.on_event(NodeLost(node="spot-0", pool="spot", reason="preempted"))
    callback.on_iteration(IterationMetrics(iteration=3, reward_mean=0.5), {"kl": 0.1})
    callback.on_validation(ValidationMetrics(weights_version=5, score=0.5))
    assert "finished 0.5 runs/x" in capsys.readouterr().out
    with pytest.raises(spotlight.StopJob, match=r"0\.960"):
        callback.on_validation(ValidationMetrics(weights_version=10, score=0.96))
