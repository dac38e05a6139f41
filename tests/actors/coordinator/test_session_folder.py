"""A session's folder, and a journal that is lost from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.actors.coordinator.session_folder import SavedSession, SessionFolder
from spotlight.actors.runtime import ActorRef
from spotlight.errors import JournalError
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
    (path / "journal.sqlite").unlink()
    for _ in range(2):
        with pytest.raises(JournalError, match="is lost"):
            SessionFolder.reopen(path)
