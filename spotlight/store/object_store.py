"""A folder in object storage, through fsspec: `file://`, `s3://` or `gs://`.

A file there is written whole or not at all. Everything may take as long as the store likes, and
raises `MirrorError` for whatever the provider's library raises, so it is called in a thread.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from spotlight.errors import MirrorError, MissingDependency, UserError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_LIBRARIES = {"file": "fsspec", "s3": "s3fs", "gs": "gcsfs"}
"""The package that must be there besides fsspec, by scheme."""
_LONGEST_PROBLEM = 300
"""Characters that are repeated of what a library says."""


class ObjectStore:
    """See the module's docstring.

    Args:
        files: the file system of fsspec.
        root: the folder in it.
        url: how people call it.
    """

    def __init__(self, files: AbstractFileSystem, root: str, url: str) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self.url = url.rstrip("/")

    def below(self, name: str) -> ObjectStore:
        """A folder inside."""
        return ObjectStore(self._files, f"{self._root}/{name}", f"{self.url}/{name}")

    def read(self, name: str, *, most: int) -> bytes | None:
        """A file of at most `most` bytes; None if it is not there."""
        with self._explaining(name):
            try:
                nbytes = self._files.info(self._path(name))["size"]
                if nbytes > most:
                    raise MirrorError(
                        f"{self.url}/{name} has {nbytes} bytes, and at most {most} are read"
                    )
                return bytes(self._files.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of the files in a folder, by their names; none if it is not there."""
        with self._explaining(folder):
            try:
                found: list[dict[str, Any]] = self._files.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
        return {
            each["name"].rpartition("/")[2]: each["size"]
            for each in found
            if each["type"] == "file"
        }

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or replace it at once."""
        with self._replacing(name) as path:
            self._files.pipe_file(path, data)

    def upload(self, name: str, file: BinaryIO) -> None:
        """The same with all that is in an open file, even if it was deleted since."""
        with self._replacing(name) as path:
            self._files.put_file(f"/proc/self/fd/{file.fileno()}", path)

    def download(self, name: str, to: Path) -> bool:
        """Copy a file to this machine; False if it is not there."""
        with self._explaining(name):
            try:
                self._files.get_file(self._path(name), str(to))
            except FileNotFoundError:
                return False
        return True

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens if it is not there."""
        with self._explaining(name), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _replacing(self, name: str) -> Iterator[str]:
        """Where to write. Objects appear when they are whole; a file of a disk is renamed then."""
        with self._explaining(name):
            path = self._path(name)
            if "file" not in self._files.protocol:
                yield path
                return
            yield f"{path}.part"
            self._files.mv(f"{path}.part", path)

    @contextmanager
    def _explaining(self, name: str) -> Iterator[None]:
        try:
            yield
        except MirrorError:
            raise
        except Exception as error:  # libraries of providers raise anything
            problem = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_PROBLEM]
            raise MirrorError(f"{self.url}/{name}: {problem}") from error


def open_store(option: str, url: str) -> ObjectStore:
    """The folder that a user names. Nothing is read: a provider may take its time.

    Raises `UserError` that names the option, or `MissingDependency`.
    """
    scheme, separator, place = url.partition("://")
    if not separator or scheme not in _LIBRARIES:
        raise UserError(f"{option} {url!r}: give a URL that begins with file://, s3:// or gs://")
    if not re.fullmatch(r"[^\s?#@\\]+", place) or not place.isprintable() or "::" in place:
        raise UserError(
            f"{option}: name only a bucket and a folder, such as s3://bucket/runs; keys belong"
            " into the environment or the provider's files"
        )
    if scheme == "file" and not place.startswith("/"):
        raise UserError(f"{option} {url!r}: give an absolute path, such as file:///mnt/runs")
    for package in ("fsspec", _LIBRARIES[scheme]):
        if importlib.util.find_spec(package) is None:
            raise MissingDependency(
                f"{option} {url}: the package `{package}` is not installed; install"
                " `spotlight-rl[storage]`"
            )
    import fsspec

    options = {"auto_mkdir": True} if scheme == "file" else {}
    files = fsspec.filesystem(scheme, use_listings_cache=False, **options)
    return ObjectStore(files, files._strip_protocol(url), url)
