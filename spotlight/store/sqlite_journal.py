"""Reads the journal of a run that Spotlight 0.1.0 wrote: a database of SQLite, with its log beside.

Copies are read, so that the files stay as they are until the journal has taken their place.
"""

from __future__ import annotations

import sqlite3
import tempfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from spotlight.errors import JournalError
from spotlight.store.journal_content import OR_ANEW

VERSION = "0.1.0"
"""The version that wrote it."""
NAME = "journal.sqlite"
_FORMAT = 2


class Former(NamedTuple):
    """What it holds."""

    owner: str
    """Whose it is."""
    term: int
    """How often it was opened."""
    records: dict[str, bytes]
    """Bodies by key."""


def files_of(folder: Path) -> list[Path]:
    """The database and what may be beside it, where there is any of it in a folder."""
    return [path for end in ("", "-wal", "-shm") if (path := folder / f"{NAME}{end}").exists()]


def read(path: Path) -> Former:
    """The journal in the database at `path`, the first of `files_of`. Raises `JournalError` if it
    is damaged, or of another format, and `OSError`.
    """
    if path.name != NAME:
        raise _damaged(path.with_name(NAME), f"it is lost, though its log {path.name} is there")
    with tempfile.TemporaryDirectory(prefix="spotlight-") as folder:
        for file in files_of(path.parent):
            if not file.name.endswith("-shm"):
                (Path(folder) / file.name).write_bytes(file.read_bytes())
        try:
            with closing(sqlite3.connect(Path(folder) / NAME)) as connection:
                return _read(path, connection)
        except (sqlite3.Error, ValueError) as error:
            raise _damaged(path, str(error)) from error


def _read(path: Path, connection: sqlite3.Connection) -> Former:
    ((form,),) = connection.execute("PRAGMA user_version").fetchall()
    if form not in (0, _FORMAT):
        raise JournalError(
            f"{path} has format {form}, of another build than Spotlight {VERSION}",
            f"resume with the build that wrote it, {OR_ANEW}",
        )
    ((owner, term, count, total),) = connection.execute(
        "SELECT owner, term, records, crcs FROM state"
    ).fetchall()
    rows = connection.execute("SELECT key, body, crc FROM record").fetchall()
    if (len(rows), sum(crc for _, _, crc in rows)) != (count, total):
        raise _damaged(path, f"{len(rows)} records do not add up to {count}")
    for key, body, crc in rows:
        if zlib.crc32(body, zlib.crc32(b"%d %b" % (len(key), key))) != crc:
            raise _damaged(path, f"the record {key!r}")
    return Former(owner, term, {key.decode(): body for key, body, _ in rows})


def _damaged(path: Path, problem: str) -> JournalError:
    return JournalError(
        f"{path}, of Spotlight {VERSION}, is damaged ({problem})",
        f"put it back from a copy with its log {NAME}-wal, {OR_ANEW}",
    )
