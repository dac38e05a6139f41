"""What a run writes down, and what it keeps of its step times."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from job_kit import job

from spotlight.actors.coordinator.job.run_record import LONGEST_AWAY_S, RunRecord
from spotlight.policies.step_times import StepKey, StepTimes
from spotlight.record.ledger import Ledger
from spotlight.record.run_events import (
    NodeLost,
    PhaseBegan,
    RunEvent,
    RunFinished,
    WorkerStateBegan,
)
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.report.run_reading import read_run
from spotlight.store.ledger_file import write_ledger
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


class Wall:
    """A wall clock that stands still."""

    def __init__(self, now: float = 1_790_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def test_every_line_has_its_date(folder: RunFolder) -> None:
    record = RunRecord(folder, clock=Wall())
    record.event(PhaseBegan(phase="rollout"))
    record.event(WorkerStateBegan(worker="w", state="idle"))
    record.iteration(IterationMetrics(iteration=0), {})
    record.validation(ValidationMetrics(weights_version=1, score=0.5), ())
    run = read_run(folder.path)
    dated = [*run.phases, *run.worker_states(), *run.iterations, *run.validations]
    assert [each.at for each in dated] == [1_790_000_000.0] * 4


async def test_states_of_workers_are_not_among_the_events(folder: RunFolder) -> None:
    record = RunRecord(folder, clock=Wall())
    record.event(WorkerStateBegan(worker="w", state="idle"))
    assert (folder.path / "events.jsonl").read_bytes() == b""
    (state,) = map(json.loads, (folder.path / "states.jsonl").read_text().splitlines())
    assert (state["event"], state["worker"], state["state"]) == ("worker_state", "w", "idle")


@pytest.mark.parametrize(
    ("passed_s", "grows_s"),
    [(0.0, 0.0), (40.0, 40.0), (-3600.0, 0.0), (3 * LONGEST_AWAY_S, LONGEST_AWAY_S)],
    ids=["at once", "away", "a clock set back", "a clock set forward"],
)
async def test_run_time_goes_on_while_the_coordinator_is_away(
    folder: RunFolder, passed_s: float, grows_s: float
) -> None:
    wall = Wall()
    record = RunRecord(folder, clock=wall)
    record.event(PhaseBegan(phase="rollout"))
    before = record.time_s()
    wall.now += passed_s
    after = RunRecord(folder, clock=wall, came_back=True).time_s()
    assert after - before == pytest.approx(grows_s, abs=0.5)
    assert after >= folder.last_moment().time_s


@pytest.mark.parametrize(
    ("last", "came_back"),
    [(RunFinished(outcome="cancelled"), True), (PhaseBegan(phase="rollout"), False)],
    ids=["after an end", "when a user resumes"],
)
async def test_run_time_does_not_go_on_while_nobody_works_on_the_run(
    folder: RunFolder, last: RunEvent, came_back: bool
) -> None:
    wall = Wall()
    record = RunRecord(folder, clock=wall)
    record.event(last)
    before = record.time_s()
    wall.now += 40.0
    after = RunRecord(folder, clock=wall, came_back=came_back).time_s()
    assert after - before == pytest.approx(0.0, abs=0.5)


async def test_run_time_goes_on_from_the_last_state_of_a_worker(folder: RunFolder) -> None:
    folder.record_event({"time_s": 3.0, "at": 100.0, "event": "phase", "phase": "rollout"})
    folder.record_state(WorkerStateBegan(worker="w", state="idle"), 5.0, 102.0)
    record = RunRecord(folder, clock=Wall(103.0), came_back=True)
    assert record.time_s() == pytest.approx(6.0, abs=0.5)


async def test_run_time_is_never_before_what_the_ledger_accounts_for(folder: RunFolder) -> None:
    folder.record_event({"time_s": 3.0, "at": 100.0, "event": "phase", "phase": "rollout"})
    write_ledger(folder.path, Ledger(number=1, time_s=9.0))
    assert RunRecord(folder, clock=Wall(101.0), came_back=True).time_s() >= 9.0


async def test_a_ledger_that_cannot_be_read_stops_no_run(folder: RunFolder) -> None:
    folder.record_event({"time_s": 3.0, "at": 100.0, "event": "phase", "phase": "rollout"})
    (folder.path / "ledger.json").write_text("{")
    assert RunRecord(folder, clock=Wall(101.0)).time_s() == pytest.approx(3.0, abs=0.5)


async def test_of_an_earlier_version_run_time_goes_on_from_the_last_event(
    folder: RunFolder,
) -> None:
    folder.record_event({"time_s": 3.0, "event": "phase", "phase": "rollout"})
    assert RunRecord(folder, came_back=True).time_s() == pytest.approx(3.0, abs=0.5)


async def test_time_is_kept_where_workers_alone_have_news(folder: RunFolder) -> None:
    record = RunRecord(folder, clock=Wall())
    await asyncio.sleep(0.02)
    record.event(WorkerStateBegan(worker="w", state="idle"))
    record.keep_time(0.01)
    assert b"time_passed" in (folder.path / "events.jsonl").read_bytes()


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
