"""What is in the file of a journal: bytes, and nothing that is done with them.

The file begins with a line of JSON (see `Head`). Each write follows as a frame: `_MARK`, the bytes
of its content, their checksum, and a checksum of these two and of the frame's place; then its
content, a `Write`. A frame is begun only when the one before it is on disk. So only the last one
can be torn by a crash, and is left out. A bad one that another follows is damage, and refused.

Every write names the version that made it, and every record has a format (`record_formats`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotlight import __version__
from spotlight.errors import JournalError
from spotlight.store.record_formats import NewerRecord, brought_up, format_of

FORMAT = 3
"""The format of the file; 1 and 2 were databases."""
OR_ANEW = "or start the job again in another run folder"

_MARK = b"\xf5jrn"
_FRAME = struct.Struct(">4sIII")
_LONGEST_HEAD = 4096


class Head(msgspec.Struct, frozen=True):
    """The first line of a file."""

    spotlight_journal: int
    """The format of what follows."""
    version: str
    """The version that began the file."""
    owner: str
    """Whose it is."""


class Write(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one write says."""

    version: str
    """The version that wrote it."""
    term: int
    """How often the journal had been opened."""
    drop: tuple[str, ...] = ()
    """The keys that begin so go, before the records."""
    records: tuple[tuple[str, int, bytes | None], ...] = ()
    """Key, format and body of each; without a body the record goes."""


_WRITE = msgspec.msgpack.Decoder(Write)


class Record(NamedTuple):
    """What is kept under a key, in the format of this version."""

    body: bytes
    version: str
    """The version that wrote it."""


class Content:
    """What a journal holds after its writes. `path` is named in errors, and not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = ""
        """Whose it is."""
        self.term = 0
        """How often it was opened."""
        self.records: dict[str, Record] = {}
        """The records that are left, by their keys."""
        self.nbytes = 0
        """Bytes of the file that are whole; a torn write may follow."""

    @classmethod
    def of(cls, path: Path, data: bytes) -> Content:
        """What the whole file says. Raises `JournalError` if it is damaged, or of another format,
        naming the version that reads it."""
        content = cls(path)
        content._read_head(data)
        while (nbytes := _whole_frame(data, content.nbytes)) is not None:
            begin = content.nbytes + _FRAME.size
            content.nbytes = begin + nbytes
            try:
                content.apply(_WRITE.decode(memoryview(data)[begin : content.nbytes]))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise damaged(path, f"is damaged at byte {begin:,} ({error})") from error
        if _is_followed(data, content.nbytes):
            where = f"byte {content.nbytes:,} of {len(data):,}"
            raise damaged(path, f"is damaged at {where}")
        return content

    @property
    def live_bytes(self) -> int:
        """Bytes of the keys and bodies that are left."""
        return sum(len(key) + len(record.body) for key, record in self.records.items())

    def apply(self, write: Write) -> None:
        """Take over what a write says. Raises `JournalError` where it is of a newer version."""
        self.term = write.term
        if write.drop:
            self.records = {k: it for k, it in self.records.items() if not k.startswith(write.drop)}
        for key, form, body in write.records:
            if body is None:
                self.records.pop(key, None)
            else:
                version = write.version if form == format_of(key) else __version__
                self.records[key] = Record(self._brought_up(key, form, body, write), version)

    def encoded(self, without: tuple[str, ...] = ()) -> bytes:
        """A whole file that says the same, but for the records that begin so: a write for each
        version that wrote any of them."""
        data = msgspec.json.encode(Head(FORMAT, __version__, self.owner)) + b"\n"
        writes: dict[str, list[tuple[str, int, bytes | None]]] = {__version__: []}
        for key, (body, version) in self.records.items():
            if not key.startswith(without):
                writes.setdefault(version, []).append((key, format_of(key), body))
        for version, records in writes.items():
            data += frame(Write(version, self.term, (), tuple(records)), len(data))
        return data

    def _read_head(self, data: bytes) -> None:
        line, end, _ = data[:_LONGEST_HEAD].partition(b"\n")
        try:
            head = msgspec.json.decode(line if end else b"", type=Head)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            problem = "is no journal, or its first line is damaged"
            raise damaged(self.path, problem) from error
        if head.spotlight_journal != FORMAT:
            problem = f"it has format {head.spotlight_journal}, and is read in format {FORMAT}"
            raise _of_another_version(self.path, problem, head.version)
        self.owner, self.nbytes = head.owner, len(line) + 1

    def _brought_up(self, key: str, form: int, body: bytes, write: Write) -> bytes:
        try:
            return brought_up(key, form, body)
        except NewerRecord as error:
            raise _of_another_version(self.path, str(error), write.version) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise damaged(self.path, f"is damaged (the record {key}: {error})") from error


def change(term: int, changes: Mapping[str, bytes | None], drop: tuple[str, ...]) -> Write:
    """What this version writes to set these keys, or to delete them where they have no body."""
    records = tuple((key, format_of(key), body) for key, body in changes.items())
    return Write(__version__, term, drop, records)


def frame(write: Write, at: int) -> bytes:
    """The bytes of a write that begins at a place of the file."""
    content = msgspec.msgpack.encode(write)
    crc = zlib.crc32(content)
    return _FRAME.pack(_MARK, len(content), crc, _crc(len(content), crc, at)) + content


def damaged(path: Path, problem: str) -> JournalError:
    """What is said of a journal that is not as it was written."""
    return JournalError(f"{path} {problem}", f"put it back from a copy, {OR_ANEW}")


def _of_another_version(path: Path, problem: str, version: str) -> JournalError:
    return JournalError(
        f"{path} was written by Spotlight {version}, and this is {__version__}: {problem}",
        f"resume with {version}, {OR_ANEW}",
    )


def _crc(nbytes: int, crc: int, at: int) -> int:
    return zlib.crc32(b"%d %d %d" % (nbytes, crc, at))


def _header(data: bytes, at: int) -> tuple[int, int] | None:
    """Bytes and checksum of the content of the frame that begins here; None if none does."""
    if len(data) - at < _FRAME.size:
        return None
    mark, nbytes, crc, own = _FRAME.unpack_from(data, at)
    return (nbytes, crc) if mark == _MARK and own == _crc(nbytes, crc, at) else None


def _whole_frame(data: bytes, at: int) -> int | None:
    """Bytes of the content of the frame that begins here; None unless it is as it was written."""
    header = _header(data, at)
    if header is None:
        return None
    content = memoryview(data)[at + _FRAME.size : at + _FRAME.size + header[0]]
    return header[0] if (len(content), zlib.crc32(content)) == header else None


def _is_followed(data: bytes, at: int) -> bool:
    """Whether a frame begins behind the bad one at this place."""
    while (at := data.find(_MARK, at + 1)) >= 0:
        if _header(data, at) is not None:
            return True
    return False
