"""Reads the journal of a run from its files, as they are while a coordinator has it open."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from spotlight.policies.requests.rows import SavedRow

_REQUESTS = "request/"


def saved_rows(files: Mapping[Path, bytes], scratch: Path) -> dict[str, SavedRow]:
    """The rows of requests that a coordinator would find that opened these journals now.

    Args:
        files: databases and logs, by their paths.
        scratch: a folder for copies, gone again afterwards.
    """
    rows: dict[str, SavedRow] = {}
    for path, data in files.items():
        if path.suffix != ".sqlite":
            continue
        scratch.mkdir()
        try:
            copy = scratch / path.name
            copy.write_bytes(data)
            log = path.with_name(f"{path.name}-wal")
            if log in files:
                copy.with_name(log.name).write_bytes(files[log])
            rows |= _rows_of(copy)
        finally:
            shutil.rmtree(scratch)
    return rows


def _rows_of(journal: Path) -> dict[str, SavedRow]:
    span = (_REQUESTS.encode(), _REQUESTS[:-1].encode() + b"0")  # the byte behind the slash
    with closing(sqlite3.connect(journal)) as connection:
        found = connection.execute("SELECT key, body FROM record WHERE key >= ? AND key < ?", span)
        return {
            key.decode().removeprefix(_REQUESTS): msgspec.json.decode(body, type=SavedRow)
            for key, body in found
        }
