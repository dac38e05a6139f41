"""A node's folder in memory: where its copy of the weights is, so that workers of the machine read
it at memory speed.

Its owner holds a lock on the folder for as long as it lives, however it ends; the kernel lets go of
it then. One that nobody holds was left behind, and is removed when the next node starts. Process
ids would not tell: containers that share this memory count their processes apart.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "spotlight-"
SHARED_MEMORY = Path("/dev/shm")


class MemoryFolder:
    """A new folder of this process, in shared memory where the system has it.

    Args:
        base: the folder of shared memory; where there is none, that of temporary files is used.
    """

    def __init__(self, base: Path = SHARED_MEMORY) -> None:
        remove_leftovers(base)
        lock = None
        while lock is None:  # another process may take it for a leftover before it is locked
            self.path = Path(
                tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_existing(base))
            )
            lock = _lock(self.path)
        self._lock = lock

    def remove(self) -> None:
        """Delete the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_leftovers(base: Path = SHARED_MEMORY) -> None:
    """Remove the folders whose owners are gone."""
    for folder in _existing(base).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        lock = _lock(folder) if pid.isdigit() else None
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder; None if somebody else does, or it is gone, or is not
    ours.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _existing(base: Path) -> Path:
    return base if base.is_dir() else Path(tempfile.gettempdir())
