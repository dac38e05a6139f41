"""The journal of a run that 0.1.0 began is taken over once, or refused and kept."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from journal_kit import opened

from spotlight import failpoints
from spotlight.errors import JournalError
from spotlight.store.journal import NAME, Journal

EARLIER = Path(__file__).parents[1] / "data" / "runs" / "0.1.0"
DATABASE, LOG = "journal.sqlite", "journal.sqlite-wal"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of the journal, beside one of 0.1.0 that was killed."""
    for name in (DATABASE, LOG):
        shutil.copy(EARLIER / name, tmp_path)
    return tmp_path / NAME


@pytest.fixture(autouse=True)
def nobody_acts_afterwards():
    yield
    failpoints.install(None)


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def refused(path: Path, words: str) -> None:
    before = files(path)
    with pytest.raises(JournalError, match=words):
        Journal.read(path, None)
    assert files(path) == before


def test_it_is_taken_over_with_what_is_in_its_log(path: Path) -> None:
    journal = Journal.open(path, "run-1")
    keys = [key for key, _ in journal.items()]
    assert (journal.owner, journal.term) == ("run-1", 3)
    assert {"identity", "prompts", "checkpoint", "progress/000002"} <= set(keys)
    assert {journal.version_of(key) for key in keys} == {"0.1.0"}
    held = journal.items()
    journal.close()
    assert set(files(path)) == {NAME}
    with opened(path, "run-1") as again:
        assert (again.term, again.items()) == (4, held)
        assert again.version_of("identity") == "0.1.0"


def test_it_keeps_its_owner_where_nobody_knows_better(path: Path) -> None:
    journal = Journal.read(path, None)
    assert len(journal.owner) == 64
    journal.close()


def test_it_stays_until_the_journal_has_begun(path: Path) -> None:
    before = files(path)
    Journal.read(path, None).close()
    assert files(path) == before


def test_a_disk_that_refuses_the_journal_loses_nothing_of_it(path: Path) -> None:
    def refuse(place: str) -> None:
        raise OSError(28, "No space left on device")

    failpoints.install(refuse)
    before = files(path)
    with pytest.raises(JournalError, match="No space left"):
        Journal.open(path, "run-1")
    assert files(path) == before
    failpoints.install(None)
    with opened(path, "run-1") as journal:
        assert len(journal.items()) > 10


def test_a_kill_before_it_is_removed_does_not_bring_it_back(path: Path) -> None:
    left = files(path)
    Journal.open(path, "run-1").close()
    for name, data in left.items():
        (path.parent / name).write_bytes(data)
    with opened(path, "run-1") as journal:
        assert journal.term == 4, "the journal is what holds"


@pytest.mark.parametrize("position", [30, 4100, 20000])
def test_a_damaged_one_is_refused_by_its_version_and_kept(path: Path, position: int) -> None:
    database = path.with_name(DATABASE)
    data = bytearray(database.read_bytes())
    data[position : position + 400] = bytes(400)
    database.write_bytes(data)
    (path.parent / LOG).unlink()
    refused(path, r"journal\.sqlite, of Spotlight 0\.1\.0, is damaged")


def test_a_record_that_vanished_is_missed(path: Path) -> None:
    connection = sqlite3.connect(path.with_name(DATABASE))
    connection.execute("DELETE FROM record WHERE key = ?", (b"identity",))
    connection.commit()
    connection.close()
    refused(path, r"records do not add up to")


def test_one_of_another_build_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path.with_name(DATABASE))
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    refused(path, "has format 1, of another build than Spotlight 0.1.0; resume with the build")


def test_a_log_without_its_database_is_refused(path: Path) -> None:
    os.unlink(path.with_name(DATABASE))
    refused(path, "it is lost, though its log journal.sqlite-wal is there")
