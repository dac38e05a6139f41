"""Reads files that a user names: job files, prompts, metadata, and what a checkpoint consists of.

A path may lead anywhere, and a job may come from another machine. So only a regular file is opened,
since a named pipe waits for its writer for ever and a device may never end; no more is read than
its reader allows; and a file must be as long as it says, which those of /proc are not.

Invariant: an error says which file is wrong and how, and never repeats what the file holds.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple, TypeVar

from spotlight.errors import UnreadableFile

MEBIBYTE = 1024 * 1024
LONGEST_PATH = 4096
"""Bytes of a path: PATH_MAX of Linux."""

_STRAY = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffd\ud800-\udfff]")
_NAMES = {"\ufeff": "a byte order mark", "\ufffd": "written for one that could not be read"}

T = TypeVar("T")
Other = TypeVar("Other")


class Lines(NamedTuple, Generic[T]):
    """What the lines of a file hold, blank lines left out."""

    source: str
    """The file, as errors call it."""
    items: list[T]
    """What each line holds."""
    numbers: list[int]
    """Number of each of these lines in the file, counted from 1."""

    def place(self, index: int) -> str:
        """Where an item stands, for an error."""
        return f"{self.source}, line {self.numbers[index]}"

    def spread(self, count: int) -> Lines[T]:
        """So many of the lines, with equal distances as far as that can be; at most all."""
        total = len(self.items)
        kept = [index * total // count for index in range(count)] if count < total else range(total)
        return Lines(
            self.source,
            [self.items[index] for index in kept],
            [self.numbers[index] for index in kept],
        )

    def map(self, function: Callable[[T], Other]) -> Lines[Other]:
        """The same lines with something else made of each."""
        return Lines(self.source, [function(item) for item in self.items], self.numbers)


def cache_folder() -> Path:
    """Where a machine keeps what it can make again, for all processes of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "spotlight"


def path_problem(text: str) -> str | None:
    """Why `text` cannot be a path, whatever there is on the disk; None if it can."""
    if not text:
        return "must not be empty"
    if re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", text):
        return "must not hold control characters"
    if len(text.encode()) > LONGEST_PATH:
        return f"must have at most {LONGEST_PATH} bytes, not {len(text.encode()):,}"
    return None


def text_problem(text: str, allowed: str = "") -> str | None:
    """What a text holds that nobody means to write: control characters but those `allowed`, line
    separators, byte order marks, and what stands for a character that was lost. None if nothing.
    """
    for character in _STRAY.findall(text):
        if character not in allowed:
            name = unicodedata.name(character, "a control character").lower()
            name = _NAMES.get(character, name)
            return f"holds the character U+{ord(character):04X} ({name})"
    return None


def read_bytes(path: Path, *, most: int) -> bytes:
    """The whole file, of at most `most` bytes. Raises `UnreadableFile`."""
    with open_file(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > most:
            raise UnreadableFile(
                path, f"has {nbytes:,} bytes, but at most {most:,} are read of such a file"
            )
        data = file.read(nbytes + 1)
    if len(data) != nbytes:
        raise UnreadableFile(
            path,
            "does not have the length that the system reports, because it is being written or"
            " is not on a disk; copy it first",
        )
    return data


def read_text(path: Path, *, most: int) -> str:
    """The text of a file in UTF-8, of at most `most` bytes, without the byte order mark that it
    may begin with. Raises `UnreadableFile`.
    """
    data = read_bytes(path, most=most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        found = ", but UTF-16; save it as UTF-8" if is_utf16 else ""
        raise UnreadableFile(path, f"is not UTF-8 text{found}") from error


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, without ever waiting for a writer.

    Raises `UnreadableFile`, also for an error of the file system while it is read.
    """
    try:
        with open(_open(path), "rb") as file:
            _require_regular(path, os.fstat(file.fileno()).st_mode)
            yield file
    except OSError as error:
        raise UnreadableFile(path, f"cannot be read ({error.strerror or error})") from error


def _open(path: Path) -> int:
    try:
        # Before it is opened: opening some devices has an effect.
        _require_regular(path, os.stat(path).st_mode)
    except ValueError as error:
        raise UnreadableFile(
            path, "is not a path: it holds a character that no file name may have"
        ) from error
    # Without waiting, should a pipe have taken its place since.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def irregularity(mode: int) -> str | None:
    """What is there instead of a regular file, by its mode; None if it is one."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a link",
    }
    if stat.S_ISREG(mode):
        return None
    return f"is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a file"


def _require_regular(path: Path, mode: int) -> None:
    problem = irregularity(mode)
    if problem is not None:
        raise UnreadableFile(path, problem)
