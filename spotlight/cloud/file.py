"""A drop-in file: whoever launches the node gives notice by writing it.

`{"action": "preempt", "lead_s": 30}` is a notice; `{"action": "cancel"}`, or no file, is none.
Writing it again with a nearer end brings the deadline nearer.
"""

from __future__ import annotations

import asyncio
import math
import stat
from codecs import BOM_UTF8
from pathlib import Path
from typing import Literal

import msgspec

from spotlight.cloud.notices import Announcement, SourceFailed

_SIZE_LIMIT = 64 * 1024


class _Instruction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    action: Literal["preempt", "cancel"]
    lead_s: float = 30.0


class NoticeFile:
    """Reads the file when its time of change, size or identity is another than before."""

    name = "file"

    def __init__(self, path: Path, poll_s: float = 0.5) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._announced: tuple[Announcement, ...] = ()
        self.poll_s = poll_s

    async def read(self) -> tuple[Announcement, ...]:
        """What the file says. Raises `SourceFailed` when it cannot be read, or not yet in full."""
        try:
            return await asyncio.to_thread(self._read)
        except FileNotFoundError:
            self._stamp, self._announced = None, ()
            return ()
        except (OSError, msgspec.DecodeError, RecursionError, ValueError) as error:
            raise SourceFailed(f"{self._path}: {error}") from error

    def _read(self) -> tuple[Announcement, ...]:
        status = self._path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            raise ValueError("not a regular file")
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == self._stamp:
            return self._announced
        with self._path.open("rb") as file:
            content = file.read(_SIZE_LIMIT + 1)
        if len(content) > _SIZE_LIMIT:
            raise ValueError(f"holds more than {_SIZE_LIMIT} bytes")
        instruction = msgspec.json.decode(content.removeprefix(BOM_UTF8), type=_Instruction)
        if not 0 <= instruction.lead_s < math.inf:
            raise ValueError("lead_s: must be 0 or more")
        self._announced = ()
        if instruction.action == "preempt":
            self._announced = (Announcement("file", "preempt", instruction.lead_s, str(stamp)),)
        self._stamp = stamp
        return self._announced
