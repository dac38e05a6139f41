"""A node's folder in memory: where its copy of the weights is, so that workers of the machine read
it at memory speed. A user may name a folder of a disk instead, where memory is short.

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

from spotlight.errors import UserError

_PREFIX = "spotlight-"
SHARED_MEMORY = Path("/dev/shm")


class MemoryFolder:
    """A new folder of this process.

    Args:
        base: the folder that it is made in; by default shared memory, and where the system has none
            the folder of temporary files.
    """

    def __init__(self, base: Path | None = None) -> None:
        base = base or default_base()
        remove_leftovers(base)
        lock = None
        while lock is None:  # another process may take it for a leftover before it is locked
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
            lock = lock_of_leftover(self.path)
        self._lock = lock

    def remove(self) -> None:
        """Delete the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_leftovers(base: Path | None = None) -> None:
    """Remove the folders whose owners are gone."""
    for folder in (base or default_base()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        lock = lock_of_leftover(folder) if pid.isdigit() else None
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def usable_base(option: str, folder: Path | None) -> Path | None:
    """The absolute path of a folder that a user named for stores; None for None.

    Raises `UserError` that names the option, unless a folder can be made there.
    """
    if folder is None:
        return None
    try:
        base = folder.resolve(strict=True)
        Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base)).rmdir()
    except (OSError, ValueError, RuntimeError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"{option} {folder}: {problem}; name a folder of this machine that is there and can be"
            " written"
        ) from error
    return base


def lock_of_leftover(folder: Path) -> int | None:
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


def default_base() -> Path:
    """Where a store is made unless a user names a folder."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
