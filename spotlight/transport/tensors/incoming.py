"""A bundle on its way into a folder: written as it comes, beside the others until it is whole."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from isal.isal_zlib import crc32

from spotlight.errors import TransferFailed, TransferRefused
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.offers import is_intact_file, nbytes_of
from spotlight.types import BundleOffer

Result = TypeVar("Result")

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Incoming:
    """See the module's docstring. A context; what is not kept when it is closed is gone.

    Everything raises `TransferFailed` when the file system refuses.
    """

    def __init__(self, folder: Folder, key: str, *, durable: bool) -> None:
        self.nbytes = 0
        self.checksum = 0
        """CRC-32 of what was written."""
        self._folder = folder
        self._key = key
        self._durable = durable
        with self._explaining():
            self._name, self._file = folder.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The file, until it is kept."""
        return self._folder.path_of(self._name)

    def write(self, parts: Iterable[bytes | memoryview]) -> None:
        """Append."""
        with self._explaining():
            for part in parts:
                self.checksum = crc32(part, self.checksum)
                self.nbytes += len(part)
                left = memoryview(part)
                while left:
                    left = left[self._file.write(left) :]

    def keep(self) -> None:
        """Have it take the place of the bundle of its key, if there is one."""
        with self._explaining():
            if self._durable:
                os.fsync(self._file.fileno())
            self._folder.finish(self._name, self._key, durable=self._durable)

    def link(self, offer: BundleOffer) -> bool:
        """Be the file of another store of this machine, under another name; False if it is out of
        reach or damaged."""
        source = Folder(Path(offer.store.root))
        if not source.is_store:
            return False
        try:
            name, file = self._folder.link(source, offer.key)
        except OSError:
            return False
        if not is_intact_file(file, offer.nbytes, offer.checksum):
            file.close()
            self._folder.abandon(name)
            return False
        self.close()
        self._name, self._file = name, file
        self.nbytes, self.checksum = offer.nbytes, offer.checksum
        return True

    def adopt(self, name: str, checksum: int) -> None:
        """Be the file that another process of this machine has written here; raises
        `TransferFailed` if it is not intact."""
        with self._explaining():
            file = self._folder.begun(name)
            self.close()
            self._name, self._file = name, file
            self.nbytes = nbytes_of(file)
            if not is_intact_file(file, self.nbytes, checksum):
                raise TransferFailed("checksum differs")
            self.checksum = checksum

    def close(self) -> None:
        """Drop what is not kept."""
        self._file.close()
        self._folder.abandon(self._name)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"cannot be kept in {self._folder.root}: {error.strerror}"
            if error.errno in _FULL:
                raise TransferRefused(
                    HTTPStatus.INSUFFICIENT_STORAGE,
                    f"{problem}; free some space, or name a larger --store (bundle {self._key})",
                ) from error
            raise TransferFailed(f"{problem} (bundle {self._key})") from error


async def in_thread(work: Callable[[], Result]) -> Result:
    """Do what may block in a thread, and wait for its end even when cancelled: what it works on is
    not to be closed meanwhile.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # nobody asks for it any more
        raise
