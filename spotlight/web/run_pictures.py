"""Pictures of a run, from inside its folder alone: no step of the way may be a link, and what is no
picture is not there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

from spotlight.web.refusing import not_found

LARGEST = 64 << 20
"""Bytes of a picture."""
_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
_BEGINNINGS = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
_MOST_STEPS = 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Picture(NamedTuple):
    """A picture that is open; who gets it closes it."""

    file: BinaryIO
    nbytes: int
    media_type: str
    tag: str
    """It is another one when the file is."""


def open_picture(run: Path, steps: Sequence[str]) -> Picture:
    """The picture that these steps lead to from the folder of a run. Raises `Refused` for what is
    not there, is no picture, or is not inside of the folder."""
    media_type = _TYPES.get(os.path.splitext(steps[-1])[1].lower()) if steps else None
    if media_type is None or len(steps) > _MOST_STEPS or not all(map(_is_step, steps)):
        raise _no_picture()
    try:
        with ExitStack() as opened:
            at = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, at)
            for step in steps[:-1]:
                at = os.open(step, _FOLDER, dir_fd=at)
                opened.callback(os.close, at)
            file = os.fdopen(os.open(steps[-1], _FILE, dir_fd=at), "rb")
    except (OSError, ValueError) as error:
        raise _no_picture() from error
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or not _looks_like(file, media_type, status.st_size):
        file.close()
        raise _no_picture()
    tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
    return Picture(file, status.st_size, media_type, tag)


def _is_step(text: str) -> bool:
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text


def _looks_like(file: BinaryIO, media_type: str, nbytes: int) -> bool:
    head = file.read(12)
    file.seek(0)
    if nbytes > LARGEST:
        return False
    if media_type == "image/webp":
        return head[:4] == b"RIFF" and head[8:] == b"WEBP"
    return head.startswith(_BEGINNINGS[media_type])


def _no_picture() -> Exception:
    return not_found("there is no such picture in the run folder")
