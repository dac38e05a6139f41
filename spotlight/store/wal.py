"""What a write-ahead log of SQLite (a `-wal` file) holds, judged before SQLite reads it.

SQLite takes a log up to its first bad frame and ignores the rest without a word. That is right for
a write that a crash broke off, and wrong for a byte that was damaged in the middle. A transaction
begins only when the one before it is on disk, so the two can be told apart: only the end of a log
can be torn.

The format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24

_WORDS = {0x377F0682: "<II", 0x377F0683: ">II"}
"""Byte order of the words that are summed, by the magic number of the log."""
_MASK = 0xFFFFFFFF


class WalDamaged(Exception):
    """The log is damaged before its end: SQLite would silently ignore what follows."""


class _Header(NamedTuple):
    words: str
    page_bytes: int
    salts: bytes
    sums: tuple[int, int]


def torn_bytes(log: bytes) -> int:
    """How many bytes at the end of a log belong to no whole transaction: SQLite ignores them.

    Raises `WalDamaged` if what SQLite would ignore may have been acknowledged: a transaction ends
    behind the first bad frame, or frames follow a bad header.
    """
    header = _read_header(log)
    if header is None:
        if len(log) > HEADER_BYTES:
            raise WalDamaged("its header is damaged")
        return len(log)  # a header is on disk before the first frame is written
    frame_bytes = FRAME_HEADER_BYTES + header.page_bytes
    sums, committed = header.sums, HEADER_BYTES
    for start in range(HEADER_BYTES, len(log) - frame_bytes + 1, frame_bytes):
        frame = memoryview(log)[start : start + frame_bytes]
        sums = _sum(header.words, frame[:8], sums)
        sums = _sum(header.words, frame[FRAME_HEADER_BYTES:], sums)
        if frame[8:16] != header.salts or sums != struct.unpack(">II", frame[16:24]):
            _refuse_commit_behind(log, start, frame_bytes, header.salts)
            break
        if _ends_transaction(frame):
            committed = start + frame_bytes
    return len(log) - committed


def _read_header(log: bytes) -> _Header | None:
    """None unless every byte of it is as it was written."""
    if len(log) < HEADER_BYTES:
        return None
    magic, _format, page_bytes = struct.unpack_from(">III", log)
    words = _WORDS.get(magic)
    if words is None:
        return None
    sums = _sum(words, memoryview(log)[:24], (0, 0))
    if sums != struct.unpack_from(">II", log, 24):
        return None
    return _Header(words, page_bytes, log[16:24], sums)


def _sum(words: str, data: memoryview, sums: tuple[int, int]) -> tuple[int, int]:
    """Go on with the running checksum of a log."""
    first, second = sums
    for left, right in struct.iter_unpack(words, data):
        first = (first + left + second) & _MASK
        second = (second + right + first) & _MASK
    return first, second


def _refuse_commit_behind(log: bytes, bad: int, frame_bytes: int, salts: bytes) -> None:
    """Frames with other salts are left from an earlier use of the file and say nothing."""
    for start in range(bad + frame_bytes, len(log) - frame_bytes + 1, frame_bytes):
        frame = memoryview(log)[start : start + frame_bytes]
        if frame[8:16] == salts and _ends_transaction(frame):
            raise WalDamaged(f"it is damaged between bytes {bad} and {bad + frame_bytes}")


def _ends_transaction(frame: memoryview) -> bool:
    """The frame that ends a transaction carries the size of the database."""
    return bool(struct.unpack_from(">I", frame, 4)[0])
