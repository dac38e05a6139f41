"""A node's folder in memory: where its copy of the weights is, so that workers of the machine read
it at memory speed.

The folder bears the pid of its owner. One that was left behind by a killed process is removed when
the next one starts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "spotlight-"
_SHARED_MEMORY = Path("/dev/shm")


def create_memory_folder() -> Path:
    """A new folder of this process, in shared memory where the system has it."""
    remove_leftovers()
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_base()))


def remove_leftovers() -> None:
    """Remove the folders of processes that are gone."""
    for folder in _base().glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _base() -> Path:
    return _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
