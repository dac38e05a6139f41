"""The note `.running`, in which coordinators before 0.2 kept the one run that went on.

It is read once: a coordinator that is upgraded in the middle of a run goes on with that. What such
a coordinator wrote beside it is known here as it was then.
"""

from __future__ import annotations

import hashlib
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from spotlight.errors import RunFolderError
from spotlight.store.journal import NAME, Journal
from spotlight.store.queued_job import QueuedJob
from spotlight.store.run_folder import read_config

NOTE = ".running"
_SESSION = "session.json"
_IDENTITY = "identity"
_OPERATOR = "operator"
"""Whose a run of somebody who is not known is."""


class _SavedSession(msgspec.Struct, frozen=True):
    session: str
    owner: str = _OPERATOR


class _Identity(msgspec.Struct, frozen=True):
    job_id: str
    owner: str = _OPERATOR


def left_in(runs: Path) -> QueuedJob | None:
    """The run or session that a coordinator of this folder has not brought to its end; None if
    there is no note. Of one whose files cannot be read little is known: going on with it says why.
    """
    note = runs / NOTE
    if not note.is_file():
        return None
    folder = Path(note.read_text(encoding="utf-8"))
    return _session(folder) if (folder / _SESSION).exists() else _job(folder)


def remove(runs: Path) -> None:
    """Nothing goes on but what is in the queue."""
    (runs / NOTE).unlink(missing_ok=True)


def _job(folder: Path) -> QueuedJob:
    identity, name, ranks, iterations = _made_up(folder), folder.name, 1, 0
    with suppress(RunFolderError):
        job = read_config(folder)
        name, ranks, iterations = job.name, job.training.ranks, job.iterations
    with suppress(RunFolderError, msgspec.MsgspecError):
        identity = _read_identity(folder)
    since = _time_of(folder / "config.yaml")
    return QueuedJob(
        id=identity.job_id,
        name=name,
        kind="job",
        owner=identity.owner,
        weight=1.0,
        priority=0,
        ranks=ranks,
        run_folder=str(folder),
        submitted_at=since,
        state="running",
        began_at=since,
        iterations=iterations,
    )


def _session(folder: Path) -> QueuedJob:
    saved = _SavedSession(folder.name)
    with suppress(OSError, msgspec.MsgspecError):
        saved = msgspec.json.decode((folder / _SESSION).read_bytes(), type=_SavedSession)
    since = _time_of(folder / _SESSION)
    return QueuedJob(
        id=saved.session,
        name=f"session-{saved.session}",
        kind="session",
        owner=saved.owner,
        weight=1.0,
        priority=0,
        ranks=0,
        run_folder=str(folder),
        submitted_at=since,
        state="running",
        began_at=since,
    )


def _read_identity(folder: Path) -> _Identity:
    with closing(Journal.read(folder / NAME, owner=None, least_term=1)) as journal:
        return msgspec.json.decode(journal.get(_IDENTITY) or b"", type=_Identity)


def _made_up(folder: Path) -> _Identity:
    """Of a run whose journal cannot be read; the same whenever it is asked for."""
    told = hashlib.sha256(str(folder).encode()).hexdigest()
    return _Identity(f"{folder.name}-{told[:12]}")


def _time_of(file: Path) -> float:
    """When a run began, as far as its files show: in seconds since 1970, 0 if they are gone."""
    return file.stat().st_mtime if file.exists() else 0.0
