"""Which folders may be begun, or opened again, for a run, and by whom."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys

import pytest
from run_folder_kit import iteration, job, lines, reopened

from spotlight import failpoints
from spotlight.errors import RunFolderError
from spotlight.store.journal import NAME
from spotlight.store.run_folder import RunFolder, next_run_folder, read_config

# --- a new folder ---


def test_a_new_folder_holds_the_whole_job(path, folder):
    assert read_config(path) == job()
    assert "checkpoint_every: 5" in (path / "config.yaml").read_text()
    assert folder.last_moment().time_s == 0.0


def test_folders_on_the_way_are_made(tmp_path):
    RunFolder.create(tmp_path / "a" / "b" / "run", job()).close()
    assert read_config(tmp_path / "a" / "b" / "run") == job()


def test_a_folder_that_holds_a_run_is_not_taken_for_a_new_one(path, folder):
    folder.close()
    with pytest.raises(RunFolderError, match=r"already holds a run.*--resume"):
        RunFolder.create(path, job())


def test_a_folder_with_other_files_is_not_taken(path):
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="is not empty"):
        RunFolder.create(path, job())
    assert [entry.name for entry in path.iterdir()] == ["thesis.tex"]


def test_a_folder_with_nothing_but_logs_is_new(path):
    (path / "logs").mkdir(parents=True)
    RunFolder.create(path, job()).close()


def test_a_path_that_is_a_file_is_refused_with_its_name(path):
    path.write_text("")
    with pytest.raises(RunFolderError, match=str(path)):
        RunFolder.create(path, job())


def test_the_journal_comes_back_as_it_was_written(path, folder):
    folder.journal.write({"progress/1": b"one"})
    folder.close()
    again, _ = RunFolder.reopen(path, None)
    assert again.journal.items("progress/") == [("progress/1", b"one")]
    assert again.journal.term == 2
    again.close()


def test_the_journal_of_another_job_is_refused(path, folder, tmp_path):
    folder.close()
    other = RunFolder.create(tmp_path / "other", job(seed=1))
    other.close()
    (path / NAME).write_bytes((tmp_path / "other" / NAME).read_bytes())
    with pytest.raises(RunFolderError, match="belongs to the run"):
        RunFolder.reopen(path, None)


def test_another_job_is_refused_and_nothing_is_changed(path, folder):
    folder.record_metrics(iteration(0))
    folder.close()
    with pytest.raises(RunFolderError, match=r"belongs to another job"):
        RunFolder.reopen(path, job(seed=1))
    assert lines(path / "metrics.jsonl") == [iteration(0)]
    assert reopened(path, job())[0] == job()


def test_a_folder_without_a_job_is_no_run_folder(path):
    with pytest.raises(RunFolderError, match=r"not a run folder: it has no config\.yaml"):
        RunFolder.reopen(path, None)
    assert not path.exists()


@pytest.mark.parametrize("damage", [b"name: [", b"name: x\n", b"\xff\xfe", b""])
def test_a_damaged_config_is_named(path, folder, damage):
    folder.close()
    (path / "config.yaml").write_bytes(damage)
    with pytest.raises(RunFolderError, match=r"config\.yaml cannot be used"):
        RunFolder.reopen(path, None)


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize(
    "name",
    [
        ".lock",
        "events.jsonl",
        NAME,
        "journal.sqlite",
        "ledger.json",
        "metrics.jsonl",
        "states.jsonl",
        "step-times.json",
    ],
)
def test_what_is_appended_to_is_a_file_of_the_folder(path, folder, tmp_path, name, kind):
    folder.close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine\n")
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name) if kind == "pipe" else (path / name).symlink_to(elsewhere)
    with pytest.raises(RunFolderError, match=rf"{name} is a (named pipe|link), not a file"):
        RunFolder.reopen(path, None)
    assert elsewhere.read_text() == "mine\n"


def test_a_lock_that_is_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(RunFolderError, match=r"\.lock is a named pipe"):
        RunFolder.create(tmp_path, job())


def test_a_damaged_journal_is_named_and_leaves_the_folder_free(path, folder):
    folder.close()
    good = (path / NAME).read_bytes()
    (path / NAME).write_bytes(b"nonsense" * 99)
    with pytest.raises(RunFolderError, match=NAME):
        RunFolder.reopen(path, None)
    (path / NAME).write_bytes(good)
    assert reopened(path)[0] == job()


# --- one coordinator at a time ---


def test_a_second_opening_is_refused_while_the_first_is_open(path, folder):
    with pytest.raises(RunFolderError, match="in use by another coordinator"):
        RunFolder.reopen(path, None)
    folder.record_event({"time_s": 1.0, "event": "phase"})
    folder.close()
    assert reopened(path)[1] == 1.0


HOLD = """
import pathlib, sys
from spotlight.store.journal import NAME
from spotlight.store.run_folder import RunFolder
folder, _ = RunFolder.reopen(pathlib.Path(sys.argv[1]), None)
print("open", flush=True)
sys.stdin.read()
"""


def test_another_process_holds_the_folder_until_it_dies(path, folder):
    folder.close()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(RunFolderError, match="in use by another coordinator"):
            RunFolder.reopen(path, None)
        other.kill()
        other.wait(timeout=10)
    reopened(path)


def test_a_refused_opening_changes_no_records(path, folder):
    folder.record_metrics(iteration(0))
    with pytest.raises(RunFolderError):
        RunFolder.reopen(path, None)
    assert lines(path / "metrics.jsonl") == [iteration(0)]


def test_a_lock_that_the_file_system_cannot_give_is_no_other_coordinator(path, monkeypatch):
    def flock(*_) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(RunFolderError, match=os.strerror(errno.ENOLCK)):
        RunFolder.create(path, job())


def test_a_folder_that_cannot_be_begun_can_be_begun_later(path, full_disk):
    with pytest.raises(RunFolderError, match="No space left"):
        RunFolder.create(path, job())
    full_disk.clear()
    RunFolder.create(path, job()).close()


def test_a_folder_that_cannot_be_reopened_is_left_free(path, folder):
    def refuse(place: str) -> None:
        if place == "journal.commit":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder.close()
    failpoints.install(refuse)
    try:
        with pytest.raises(RunFolderError, match="No space left"):
            RunFolder.reopen(path, None)
    finally:
        failpoints.install(None)
    reopened(path)


def test_a_folder_that_is_there_is_no_error(folder):
    folder.require_there()


@pytest.mark.parametrize("how", ["delete", "move", "replace"])
def test_a_folder_that_is_gone_while_it_is_open_is_named(path, folder, how):
    if how == "delete":
        shutil.rmtree(path)
    else:
        path.rename(path.with_name("elsewhere"))
    if how == "replace":
        shutil.copytree(path.with_name("elsewhere"), path)
    with pytest.raises(RunFolderError, match=f"{path} was deleted or moved"):
        folder.require_there()


def test_the_next_run_folder_is_the_first_unused_number(tmp_path):
    assert next_run_folder(tmp_path, "ocr") == tmp_path / "ocr-001"
    for number in (1, 2, 4):
        (tmp_path / f"ocr-{number:03d}").mkdir()
    assert next_run_folder(tmp_path, "ocr") == tmp_path / "ocr-003"


def test_closing_twice_is_harmless(folder):
    folder.close()
    folder.close()
