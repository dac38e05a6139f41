"""Where the workers of a node leave their logs: a folder that outlives the node, so that a person
can read after its end what went wrong.

Each process of a node has a folder of its own, and holds a lock on it while it lives. What is left
behind is bounded: a node that starts removes all but the newest folders of those that have ended,
and one that runs sets its workers' logs aside when they are large.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from spotlight.store.memory_folder import lock_of_leftover

KEPT = 10
"""Folders of nodes that have ended."""
LARGEST = 16 << 20
"""Bytes of a log with which it is set aside."""


def log_base() -> Path:
    """The folder of all nodes of this user. Raises `RuntimeError` for a user without a home."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = state if state.is_absolute() else Path("~/.local/state").expanduser()
    return state / "spotlight" / "logs"


def new_log_folder(base: Path, name: str) -> Path:
    """A new folder in `base`, whose name begins with `name`; nobody removes it before this process
    has ended. Raises `OSError` if it cannot be made.
    """
    base.mkdir(parents=True, exist_ok=True)
    _remove_old(base)
    path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base))
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)  # which the end of the process closes
    fcntl.flock(lock, fcntl.LOCK_SH)
    return path


def bound(logs: Iterable[Path], largest: int = LARGEST) -> None:
    """Keep each of these logs, and what went before it in `NAME.1`, below so many bytes. Whoever
    appends to a log goes on to do so; a few lines that are written meanwhile may be lost, and on a
    full disk what went before.
    """
    for log in logs:
        with suppress(OSError):  # it is not there yet, or no more
            if log.stat().st_size >= largest:
                with suppress(OSError):
                    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
                os.truncate(log, 0)


def _remove_old(base: Path) -> None:
    folders = sorted(base.iterdir(), key=lambda folder: folder.lstat().st_mtime, reverse=True)
    ended = 0
    for folder in folders:
        lock = lock_of_leftover(folder)
        if lock is None:
            continue
        ended += 1
        if ended > KEPT:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
