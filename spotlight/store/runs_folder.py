"""The folder that a coordinator keeps its runs in: which of them goes on now, and where the next
one may lie.

One coordinator at a time: the folder is locked for as long as it is open, and the system unlocks it
when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spotlight.errors import RunFolderError
from spotlight.files import path_problem
from spotlight.store import job_queue, ledger_file
from spotlight.store.run_folder import is_run, next_run_folder
from spotlight.store.running_note import NOTE

_LOCK = ".coordinator"
_SECRETS = (".coordinator.key", ".door.json", "operator.token")
_REPLACED = (NOTE, job_queue.NAME, ledger_file.NAME, *_SECRETS)
_OWN_FILES = (_LOCK, *(f"{name}{end}" for name in _REPLACED for end in ("", ".part")))
_LONGEST_PID = 20
"""Most digits of a process id."""


class RunsFolder:
    """See the module's docstring.

    Args:
        beside: a run folder outside that whoever started the coordinator named.
    """

    def __init__(self, path: Path, beside: Path | None = None) -> None:
        self.path = path
        self._beside = beside

    def place(self, name: str, wanted: str) -> Path:
        """Where the run of a job of that name may lie: below the folder, at a place of its own. A
        path that is not absolute begins in the folder. Raises `RunFolderError`.
        """
        if not wanted:
            return next_run_folder(self.path.resolve(), name)
        problem = path_problem(wanted)
        if problem is not None:
            raise RunFolderError(f"the path of the run folder {problem}")
        runs, folder = self.path.resolve(), (self.path / wanted).resolve()
        if self._beside is not None and folder == self._beside.resolve():
            return folder
        if folder == runs or not folder.is_relative_to(runs):
            raise RunFolderError(
                f"the run folder {folder} is not below {runs}; name one there, or start the"
                " coordinator with another --runs"
            )
        names = folder.relative_to(runs).parts
        if names[0] in _OWN_FILES:
            raise RunFolderError(
                f"the run folder {folder} has the name of a file of the coordinator; give another"
                " --run-folder"
            )
        for outer in folder.parents[: len(names) - 1]:
            if is_run(outer):
                raise RunFolderError(
                    f"the run folder {folder} is inside of another run; give another --run-folder"
                )
        return folder


@contextmanager
def locked(runs: Path) -> Iterator[None]:
    """Keep other coordinators out of a folder that is there. Raises `RunFolderError` when one has
    it: each would forget the run of the other.
    """
    path = runs / _LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunFolderError(
            f"{runs}: {error.strerror}; give a --runs folder that can be written"
        ) from error
    with os.fdopen(descriptor, "r+b", buffering=0) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = lock.read(_LONGEST_PID).decode("ascii", "replace").strip()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise RunFolderError(
                f"{runs}: another coordinator keeps its runs there ({who}); stop that one, or give"
                " this one a folder of its own (--runs)"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())
        yield
