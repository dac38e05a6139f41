"""What a run writes down, and what it keeps of its step times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from job_kit import job

from spotlight.actors.coordinator.job.run_record import RunRecord
from spotlight.policies.step_times import StepKey, StepTimes
from spotlight.record.run_events import NodeLost, PhaseBegan
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.report.run_reading import read_run
from spotlight.store.run_folder import RunFolder, checkpoint_path
from spotlight.trackers import IterationRecord, RunRecords

KEY = StepKey("model", 32, 64, 2, 4)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with closing(RunFolder.create(tmp_path / "run", job())) as folder:
        yield folder


async def test_the_report_reads_the_events_that_were_written(folder: RunFolder) -> None:
    record = RunRecord(folder)
    record.event(PhaseBegan(phase="rollout", iteration=3))
    record.event(NodeLost(node="n", pool="spot", reason="preempted"))
    run = read_run(folder.path)
    assert [(phase.phase, phase.iteration) for phase in run.phases] == [("rollout", 3)]
    assert [(lost.node, lost.reason) for lost in run.events_of(NodeLost)] == [("n", "preempted")]


async def test_the_report_reads_the_metrics_that_were_written(folder: RunFolder) -> None:
    record = RunRecord(folder)
    measured = IterationMetrics(iteration=2, samples=10, samples_restored=2, rollout_s=4.0)
    record.iteration(measured, {"loss": 0.5, "kl": 0.1})
    record.validation(ValidationMetrics(weights_version=3, score=0.75), ())
    run = read_run(folder.path)
    (read,) = run.iterations
    assert (read.weights_version, read.images_per_s, read.loss) == (2, 2.0, 0.5)
    assert [(one.weights_version, one.score) for one in run.validations] == [(3, 0.75)]


async def test_step_times_come_back_as_they_were_saved(folder: RunFolder) -> None:
    record = RunRecord(folder)
    assert record.step_times().get(KEY) is None
    times = StepTimes()
    times.measure(KEY, 1.5)
    record.save_step_times(times)
    assert RunRecord(folder).step_times().to_dict() == times.to_dict()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b'{"step_times": [{"model": 3}]}',
        b'{"step_times": [NaN]}',
        b"[" * 100_000,
    ],
)
async def test_damaged_step_times_are_measured_again(folder: RunFolder, damage: bytes) -> None:
    (folder.path / "step-times.json").write_bytes(damage)
    record = RunRecord(folder)
    assert record.step_times().to_dict() == StepTimes().to_dict()
    record.save_step_times(StepTimes())
    assert record.step_times().to_dict() == StepTimes().to_dict()


async def test_step_times_that_cannot_be_read_are_measured_again(folder: RunFolder) -> None:
    (folder.path / "step-times.json").mkdir()
    assert RunRecord(folder).step_times().to_dict() == StepTimes().to_dict()


async def test_callbacks_are_told_what_is_written(folder: RunFolder) -> None:
    told: list[RunRecords] = []

    class Listener:
        put = staticmethod(told.append)

    record = RunRecord(folder, Listener())  # type: ignore[arg-type]
    record.event(PhaseBegan(phase="rollout", iteration=3))
    record.iteration(IterationMetrics(iteration=2, samples=4), {"loss": 0.5, "kl": 0.1})
    record.validation(ValidationMetrics(weights_version=3, score=0.75), ())
    phase, iteration, validation = told
    assert isinstance(phase, PhaseBegan) and phase.phase == "rollout"
    assert isinstance(iteration, IterationRecord)
    assert (iteration.metrics.loss, iteration.loss) == (0.5, {"kl": 0.1})
    assert isinstance(validation, ValidationMetrics) and validation.score == 0.75


async def test_the_checkpoint_that_is_best_by_what_nobody_trains_on_is_kept(
    folder: RunFolder,
) -> None:
    record = RunRecord(folder)
    for version, (score, checks) in enumerate([(0.1, 0.5), (0.2, 0.9), (0.8, 0.3), (0.7, 0.2)]):
        metrics = ValidationMetrics(weights_version=version, score=score, checks=checks)
        record.validation(metrics, ())
        path = folder.path / checkpoint_path(version)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    record.keep_checkpoints(3, last=1)
    assert folder.checkpoints() == [1, 2, 3], "best by the checks, best by the score, and the last"
    again = RunRecord(folder)
    assert again.validations == record.validations
