"""Reads the journals of runs from their files, as they are while a coordinator has them open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from spotlight.actors.coordinator.tenant.job_journal import Identity
from spotlight.policies.requests.rows import SavedRow
from spotlight.store.journal_content import Content

_REQUESTS = "request/"


def saved_rows(files: Mapping[Path, bytes]) -> dict[str, dict[str, SavedRow]]:
    """The rows of requests that a coordinator would find that opened these journals now: by the id
    of the job or session whose they are, and by their own.

    Args:
        files: the bytes of each journal, by its path.
    """
    contents = (Content.of(path, data) for path, data in files.items())
    return {_tenant_of(content): dict(_rows_in(content)) for content in contents}


def _tenant_of(content: Content) -> str:
    identity = content.records.get("identity")
    if identity is None:  # of a session
        return content.owner
    return msgspec.json.decode(identity.body, type=Identity).job_id


def _rows_in(content: Content) -> Iterator[tuple[str, SavedRow]]:
    for key, record in content.records.items():
        if key.startswith(_REQUESTS):
            row = msgspec.json.decode(record.body, type=SavedRow)
            yield key.removeprefix(_REQUESTS), row
