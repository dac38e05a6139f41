"""A session's folder, and a journal that is lost from it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from spotlight import failpoints
from spotlight.actors.coordinator.session.session_folder import SavedSession, SessionFolder
from spotlight.actors.runtime import ActorRef
from spotlight.errors import JournalError, RunFolderError
from spotlight.jobs import work_from_data

SAVED = SavedSession(
    "mine",
    ActorRef("somewhere", "program", 1),
    work_from_data(
        {
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "sampler": {"height": 32, "width": 64},
            "rewards": [{"kind": "ocr"}],
        }
    ),
    "token",
    "abc123",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a session whose coordinator was killed."""
    folder = SessionFolder.create(tmp_path, SAVED)
    folder.journal.write({"request/1": b"done"})
    folder.close()
    return folder.path


def test_a_session_goes_on_with_what_its_journal_holds(path: Path) -> None:
    again = SessionFolder.reopen(path)
    assert again.saved == SAVED
    assert again.journal.items() == [("request/1", b"done")]
    again.close()


def test_a_session_whose_journal_is_lost_is_refused(path: Path) -> None:
    (path / "journal.records").unlink()
    for _ in range(2):
        with pytest.raises(JournalError, match="is lost"):
            SessionFolder.reopen(path)


def test_a_session_that_left_nothing_is_said_to_be_over(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"session-1 is gone, .*: it is over$"):
        SessionFolder.reopen(tmp_path / "session-1")


def test_a_new_session_deletes_what_a_kill_left_of_one_that_had_not_begun(path: Path) -> None:
    (path / "session.json").unlink()
    other = msgspec.structs.replace(SAVED, session="other")
    SessionFolder.create(path.parent, other).close()
    assert [each.name for each in path.parent.iterdir()] == ["session-other"]


async def test_a_session_that_was_deleted_as_its_coordinator_was_killed_is_over(path: Path) -> None:
    await SessionFolder.reopen(path).remove()
    with pytest.raises(RunFolderError, match="it is over"):
        SessionFolder.reopen(path)


def test_a_session_that_the_disk_refuses_leaves_nothing(tmp_path: Path) -> None:
    def full(name: str) -> None:
        if name == "journal.commit":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failpoints.install(full)
    try:
        with pytest.raises(JournalError, match="No space left on device"):
            SessionFolder.create(tmp_path, SAVED)
    finally:
        failpoints.install(None)
    assert not list(tmp_path.iterdir())


def test_a_new_session_leaves_a_run_whose_name_begins_like_a_sessions(tmp_path: Path) -> None:
    run = tmp_path / "session-notes-001"
    run.mkdir()
    (run / "config.yaml").write_text("name: session-notes\n")
    SessionFolder.create(tmp_path, SAVED).close()
    assert (run / "config.yaml").exists()
