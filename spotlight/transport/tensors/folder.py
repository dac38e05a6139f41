"""Files below a folder, by key. Symbolic links are never followed, wherever on the way they stand:
a key means what is in the folder.

What is being written lies apart until it is whole, under names that are no keys.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from spotlight.transport.tensors.keys import checked

_UNFINISHED = ".unfinished"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What is behind a symbolic link is not here."""
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)
"""Another disk, or one that gives no file a second name."""


class Folder:
    """See the module's docstring. Everything raises `OSError` when the file system refuses, and
    `TransferFailed` for what is no key.

    Args:
        prefix: of the names of what is not finished, for a process that does not own the folder.
    """

    def __init__(self, root: Path, *, prefix: str = "") -> None:
        self.root = root
        self.prefix = prefix
        self._begun = itertools.count()

    def create(self) -> None:
        """Make the folder, private to its owner, and remove what a killed process left
        unfinished."""
        unfinished = self.root / _UNFINISHED
        if unfinished.is_symlink():
            unfinished.unlink()
        shutil.rmtree(unfinished, ignore_errors=True)
        self._restore()

    def free(self) -> int:
        """Bytes that the disk has left."""
        self._restore()
        return shutil.disk_usage(self.root).free

    def sizes(self) -> dict[str, int]:
        """Bytes of every finished file, by key."""
        found = {}
        for path, folders, files, descriptor in os.fwalk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found[str((Path(path) / name).relative_to(self.root))] = status.st_size
        return found

    def open(self, key: str) -> BinaryIO:
        """A regular file, to be read."""
        return self._open(checked(key))

    def delete(self, prefix: str) -> None:
        """Drop a file or a folder of files; nothing happens if it is not there."""
        try:
            with self._parent(checked(prefix)) as (parent, name):
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
                else:
                    os.unlink(name, dir_fd=parent)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise

    def hand_out(self, key: str, path: Path) -> None:
        """Have a file outside of the folder be this file as well, or a copy where the disk gives no
        second name: at once, and on the disk when this returns. What was there stays when it fails.
        """
        part = path.with_name(f".{path.name}.partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        try:
            with self._parent(checked(key)) as (there, name), self.open(key) as file:
                try:
                    os.link(name, part, src_dir_fd=there, follow_symlinks=False)
                except OSError as error:
                    _require_unlinkable(error)
                    with part.open("xb") as copy:
                        shutil.copyfileobj(file, copy)
            _sync(part)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def take_in(self, path: Path, key: str) -> None:
        """Have a file be one of outside as well, or a copy where the disk gives no second name."""
        self.delete(key)
        try:
            with self._parent(checked(key), create=True) as (there, name):
                os.link(path, name, dst_dir_fd=there)
        except OSError as error:
            _require_unlinkable(error)
            self._copy_in(path, key)

    def _copy_in(self, path: Path, key: str) -> None:
        name, file = self.begin()
        file.close()
        try:
            shutil.copyfile(path, self.path_of(name))
            self.finish(name, key, durable=False)
        finally:
            self.abandon(name)

    # --- what is not finished ---

    def begin(self) -> tuple[str, BinaryIO]:
        """A new file, to be written, and its name until `finish`."""
        self._restore()
        with self._parent(f"{_UNFINISHED}/{self.prefix}{next(self._begun)}") as (parent, name):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o666, dir_fd=parent)
        return name, os.fdopen(descriptor, "w+b", buffering=0)

    def link(self, source: Folder, key: str) -> tuple[str, BinaryIO]:
        """A file of another folder, to be had under another name as well, and its name until
        `finish`."""
        with (
            source._parent(checked(key)) as (there, theirs),
            self._parent(f"{_UNFINISHED}/{self.prefix}{next(self._begun)}") as (here, ours),
        ):
            os.link(theirs, ours, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        try:
            return ours, self._open(f"{_UNFINISHED}/{ours}")
        except OSError:
            self.abandon(ours)
            raise

    def path_of(self, name: str) -> Path:
        """Where it is, for a library that opens files itself."""
        return self.root / _UNFINISHED / name

    def begun(self, name: str) -> BinaryIO:
        """What another process has begun here, to be read."""
        return self._open(f"{_UNFINISHED}/{name}")

    def finish(self, name: str, key: str, *, durable: bool) -> None:
        """Have it take the place of the file of that key, at once; if `durable`, it is on disk
        then."""
        with (
            self._parent(f"{_UNFINISHED}/{name}") as (here, _),
            self._parent(checked(key), create=True) as (there, new),
        ):
            os.replace(name, new, src_dir_fd=here, dst_dir_fd=there)
            if durable:
                os.fsync(there)  # a rename is on disk when its folder is
        self.abandon(name)  # renaming one link of a file to another does nothing

    def abandon(self, name: str) -> None:
        """Drop it; nothing happens if it is finished."""
        with (
            contextlib.suppress(OSError),
            self._parent(f"{_UNFINISHED}/{name}") as (parent, _),
        ):
            os.unlink(name, dir_fd=parent)

    @property
    def is_store(self) -> bool:
        """Whether it is the private folder of a store of this user's, and no other folder that a
        message names."""
        try:
            root, unfinished = os.lstat(self.root), os.lstat(self.root / _UNFINISHED)
        except OSError:
            return False
        is_private = stat.S_ISDIR(root.st_mode) and not root.st_mode & 0o077
        return is_private and root.st_uid == os.geteuid() and stat.S_ISDIR(unfinished.st_mode)

    def _restore(self) -> None:
        """Shared memory, too, is cleaned up by others now and then. A folder of another process is
        that one's to restore."""
        if self.prefix:
            return
        (self.root / _UNFINISHED).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)

    def _open(self, path: str) -> BinaryIO:
        with self._parent(path) as (parent, name):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.fdopen(os.open(name, flags, dir_fd=parent), "rb", buffering=0)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise OSError(errno.EINVAL, "not a regular file")
        return file

    @contextlib.contextmanager
    def _parent(self, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that a file is in, and the file's name there."""
        *folders, name = path.split("/")
        descriptor = os.open(self.root, _FOLDER)
        try:
            for folder in folders:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=descriptor)
                inner = os.open(folder, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name
        finally:
            os.close(descriptor)


def _require_unlinkable(error: OSError) -> None:
    """Else what went wrong is worth knowing."""
    if error.errno not in _NO_LINK:
        raise error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
