"""A run folder whose journal says less than its other files is not gone on with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from run_folder_kit import iteration, job, lines

from spotlight.errors import RunFolderError
from spotlight.record.run_events import RunStarted, encode_event
from spotlight.store.journal import NAME
from spotlight.store.run_folder import PROGRESS, RECORDS_AHEAD, RunFolder, checkpoint_path

_REFUSED = r"put it back from a copy.*start the job again in another run folder"


def worked(folder: RunFolder, iterations: int) -> None:
    """As a coordinator writes: the metrics of an iteration, then how far the journal is."""
    folder.record_event(encode_event(RunStarted(term=folder.journal.term), 0.0))
    for number in range(iterations):
        folder.record_metrics(iteration(number))
        folder.journal.write({f"{PROGRESS}{number + 1:06d}": b"{}"})


def killed(folder: RunFolder, to: Path) -> Path:
    """The folder as a kill would leave it now."""
    shutil.copytree(folder.path, to)
    return to


def refused(path: Path, words: str = _REFUSED) -> None:
    """Now and at every further try, and what is there stays."""
    metrics = lines(path / "metrics.jsonl")
    for _ in range(3):
        with pytest.raises(RunFolderError, match=words):
            RunFolder.reopen(path, None)
    assert lines(path / "metrics.jsonl") == metrics


@pytest.mark.parametrize("iterations", [0, 1, 10])
def test_a_run_whose_journal_is_gone_is_refused(folder, tmp_path, iterations):
    worked(folder, iterations)
    left = killed(folder, tmp_path / "left")
    (left / NAME).unlink()
    refused(left)
    assert not (left / NAME).exists()


def test_an_older_journal_in_the_place_of_a_lost_one_is_refused(path, folder, tmp_path):
    worked(folder, 2)
    folder.close()
    shutil.copy(path / NAME, tmp_path / "older")
    again, _ = RunFolder.reopen(path, None)
    worked(again, 5)
    again.close()
    shutil.copy(tmp_path / "older", path / NAME)
    refused(path)


def test_a_journal_that_lost_what_was_written_last_is_missed_by_the_metrics(path, folder, tmp_path):
    worked(folder, 1)
    size = (path / NAME).stat().st_size
    worked(folder, 5)
    left = killed(folder, tmp_path / "left")
    os.truncate(left / NAME, size)
    refused(left, rf"knows 1 iterations, and metrics\.jsonl has 5.*{_REFUSED}")


def test_a_checkpoint_that_the_journal_does_not_know_is_not_passed_over(path, folder):
    worked(folder, 2)
    folder.close()
    checkpoint = path / checkpoint_path(3)
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"weights")
    refused(path, "knows 2 iterations, and a checkpoint holds 3")
    assert checkpoint.exists()


# --- what a kill may leave ---


def test_metrics_that_were_written_just_before_a_kill_are_no_loss(folder, tmp_path):
    worked(folder, 2)
    folder.record_metrics(iteration(2))
    RunFolder.reopen(killed(folder, tmp_path / "left"), None)[0].close()


def test_a_kill_between_going_back_and_dropping_the_records_is_no_loss(folder, tmp_path):
    worked(folder, 5)
    gone = dict.fromkeys(f"{PROGRESS}{number:06d}" for number in (3, 4, 5))
    folder.journal.write({**gone, RECORDS_AHEAD: b""})
    RunFolder.reopen(killed(folder, tmp_path / "left"), None)[0].close()


def test_a_kill_while_the_folder_was_begun_is_no_loss(path, folder):
    folder.close()
    for entry in path.iterdir():
        if entry.name != "config.yaml":
            entry.unlink()
    RunFolder.reopen(path, None)[0].close()


def test_records_of_before_terms_were_on_record_are_read(path, folder):
    folder.record_event({"time_s": 0.0, "event": "run_started", "job": job().name})
    folder.close()
    RunFolder.reopen(path, None)[0].close()
