"""Reads the journal of a run from its file, as it is while a coordinator has it open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from spotlight.policies.requests.rows import SavedRow
from spotlight.store.journal_content import Content

_REQUESTS = "request/"


def saved_rows(files: Mapping[Path, bytes]) -> dict[str, SavedRow]:
    """The rows of requests that a coordinator would find that opened these journals now, by id.

    Args:
        files: the bytes of each journal, by its path.
    """
    return {
        key.removeprefix(_REQUESTS): msgspec.json.decode(record.body, type=SavedRow)
        for path, data in files.items()
        for key, record in Content.of(path, data).records.items()
        if key.startswith(_REQUESTS)
    }
