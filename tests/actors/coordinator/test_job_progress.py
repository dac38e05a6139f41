"""How far a job is: what is written first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from job_kit import STORE, ReachedAt, job

from spotlight import failpoints
from spotlight.actors.coordinator.job.job_progress import JobProgress
from spotlight.actors.coordinator.job.job_record import JobRecord
from spotlight.actors.coordinator.job.run_record import RunRecord
from spotlight.actors.coordinator.tenant.job_journal import JobJournal, SavedProgress
from spotlight.actors.coordinator.tenant.request_plans import unexplored
from spotlight.actors.coordinator.tenant.tenant_log import TenantLog
from spotlight.errors import JournalError
from spotlight.policies.step_times import StepTimes
from spotlight.store.run_folder import RunFolder


class Killed(BaseException):
    """Nothing goes on."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """Of a run; no kill at a failpoint is left."""
    folder = RunFolder.create(tmp_path / "run", job())
    yield folder
    failpoints.install(None)
    folder.close()


def journal_of(folder: RunFolder) -> JobJournal:
    failures: list[JournalError] = []
    return JobJournal(folder.journal, ReachedAt(STORE), failures.append)  # type: ignore[arg-type]


def begun(folder: RunFolder) -> JobProgress:
    journal = journal_of(folder)
    record = JobRecord(
        RunRecord(folder), TenantLog("id", "job", "operator"), SimpleNamespace(fail=pytest.fail)
    )
    mirroring: Any = SimpleNamespace(take=lambda completed: None)
    return JobProgress(job(), {}, journal=journal, record=record, mirroring=mirroring)


async def test_an_iteration_is_on_record_before_it_counts(folder: RunFolder) -> None:
    """A run that is gone on with does it again, or has its record."""
    progress = begun(folder)

    def kill(name: str) -> None:
        raise Killed

    failpoints.install(kill)
    with pytest.raises(Killed):
        progress.end_iteration(0, 0.0, StepTimes())
    (line,) = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["iteration"] == 0


async def test_weights_that_are_trained_again_are_validated_again(folder: RunFolder) -> None:
    journal = journal_of(folder)
    for completed, validated in ((2, (0, 2)), (3, (0, 2, 3))):
        journal.save_progress(SavedProgress(completed, unexplored(job(), completed), validated))
    progress = begun(folder)
    assert progress.saved.validated == (0, 2, 3)
    progress.rewind_to(2)
    assert progress.saved == journal.progress()[2]


async def test_a_checkpoint_has_no_validation_of_weights_after_it(folder: RunFolder) -> None:
    """Whoever begins again from it trains these weights again."""
    journal = journal_of(folder)
    for completed, validated in ((2, (0, 2)), (3, (0, 2, 3))):
        journal.save_progress(SavedProgress(completed, unexplored(job(), completed), validated))
    begun(folder).commit(2)
    assert journal.progress()[2].validated == (0, 2)
