"""Files of keys, of join tokens and of whom a coordinator knows: nobody but their owner may look
into them, or change them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spotlight.errors import UnreadableFile
from spotlight.files import open_file
from spotlight.store.run_folder import replace_file

OWNER_ONLY = 0o600
_LONGEST = 4096
"""Bytes of a key or a join token."""


def read_secret_file(path: Path, *, most: int = _LONGEST) -> str:
    """Its text of at most `most` bytes, without white space around it. Raises `UnreadableFile`,
    which shows nothing of it: also for a file that others could have read or written, or that is
    another user's."""
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid():
            raise UnreadableFile(
                path, "belongs to another user, who knows it; copy it to a file of your own"
            )
        if mode & ~OWNER_ONLY:
            raise UnreadableFile(
                path,
                f"is open to others (mode {mode:04o}); if nobody has read it, run"
                f" `chmod 600 {path}`, else make another",
            )
        data = file.read(most + 1)
    if len(data) > most:
        raise UnreadableFile(path, "is too large to be such a file")
    return data.decode("ascii", "replace").strip()


def write_secret_file(path: Path, text: str) -> None:
    """Write one, or replace it, so that it is either the old or the new one. Raises `OSError`."""
    replace_file(path, f"{text}\n".encode(), mode=OWNER_ONLY)
