"""The folder of a session on the coordinator's disk: the journal of its requests, and the results
of workers. A restarted coordinator continues with it; at the end of the session it is deleted.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import structlog

from spotlight.actors.runtime import ActorRef
from spotlight.errors import RunFolderError
from spotlight.jobs import WorkSpec
from spotlight.store.journal import NAME, Journal
from spotlight.store.run_folder import is_run, replace_file

log = structlog.get_logger(__name__)

_FILE = "session.json"
_PREFIX = "session-"


class SavedSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a coordinator that comes back must know."""

    session: str
    user: ActorRef
    work: WorkSpec
    token: str
    """The token of the session's store."""
    owner: str
    """Whose it is: the id of a submitter's join token, or the operators'."""


class SessionFolder:
    """An open one. Raises `RunFolderError` when the disk refuses."""

    def __init__(self, path: Path, saved: SavedSession) -> None:
        self.path = path
        self.saved = saved
        self.journal = Journal.open(path / NAME, owner=saved.session, least_term=1)

    @classmethod
    def create(cls, runs: Path, saved: SavedSession, live: Collection[Path] = ()) -> SessionFolder:
        """Of a new session. What earlier ones have left is deleted, but for the folders of those
        that are `live`."""
        log.debug("session_creating", session=saved.session)
        for leftover in runs.glob(f"{_PREFIX}*"):
            if leftover not in live and not is_run(leftover):
                shutil.rmtree(leftover, ignore_errors=True)
        path = runs / f"{_PREFIX}{saved.session}"
        with _explaining(path):
            path.mkdir(parents=True)
            try:
                Journal.open(path / NAME, owner=saved.session).close()
                replace_file(path / _FILE, msgspec.json.encode(saved))
                return cls(path, saved)
            except Exception:
                shutil.rmtree(path, ignore_errors=True)
                raise

    @classmethod
    def reopen(cls, path: Path) -> SessionFolder:
        """Of a session whose coordinator was killed. Its journal is there since before the folder
        was one of a session; a lost one is refused."""
        try:
            saved = msgspec.json.decode((path / _FILE).read_bytes(), type=SavedSession)
        except FileNotFoundError as error:
            raise RunFolderError(
                f"{path} is gone, as it is at the end of a session; whoever ended it was killed"
                " before saying why: it is over"
            ) from error
        except (OSError, msgspec.MsgspecError) as error:
            raise RunFolderError(
                f"{path} is not a session that can be continued: {error}"
            ) from error
        return cls(path, saved)

    def close(self) -> None:
        """Leave it for the next coordinator."""
        self.journal.close()

    async def remove(self) -> None:
        """Delete it. What is left after a kill is no session."""
        self.close()
        await asyncio.to_thread(_remove, self.path)


def _remove(path: Path) -> None:
    with suppress(OSError):
        (path / _FILE).unlink()
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{path}: {error.strerror}; give the coordinator a --runs folder that can be written"
        ) from error
