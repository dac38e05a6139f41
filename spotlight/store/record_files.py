"""The lines of a run's records: the one way to read them, and when events go on in another file.

Metrics are in `metrics.jsonl`, events in `events.jsonl`. When that is large it becomes the next of
`events-000001.jsonl`, `events-000002.jsonl`, ..., and another `events.jsonl` begins. One after the
other these files are one text to which whole lines are only added. Its last line may be torn: by
the end of whoever wrote it, or since it is being written.

The states of workers are not among the events but in two files of their own (`states_file`); they
are among the events of runs that earlier versions of Spotlight wrote.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from spotlight.errors import RunFolderError, UnreadableFile
from spotlight.files import open_file

METRICS = "metrics.jsonl"
NEWEST = "events.jsonl"
STATES = "states.jsonl"
OLDER_STATES = "states-older.jsonl"
LARGEST = 32 << 20
"""Bytes of `events.jsonl` with which it is set aside."""
OLDER = re.compile(r"events-([0-9]{6,})\.jsonl")
"""The names of those that were set aside, with their numbers."""


class Line(NamedTuple):
    """A line, with its end of line if that is there."""

    where: str
    """The file and the line's number in it, as `FILE, line N`."""
    text: bytes
    end: int
    """The byte at which the line ends: of its file, or of the whole text of events."""


def metrics_lines(run: Path) -> Iterator[Line]:
    """Those of `metrics.jsonl`; none where that is not there yet. Raises `RunFolderError`."""
    path = run / METRICS
    if path.exists():
        with _open(path) as file:
            yield from _lines([(path, file)])


def event_lines(run: Path, end: int | None = None) -> Iterator[Line]:
    """Those of the text of events up to its byte `end`; none where no event was written yet. Raises
    `RunFolderError`."""
    for line in _lines(_files(run)):
        if end is not None and line.end > end:
            return
        yield line


def whole_event_lines(run: Path) -> Iterator[bytes]:
    """The lines without their ends, and without a torn one. Raises `RunFolderError`."""
    for line in event_lines(run):
        if line.text.endswith(b"\n"):
            yield line.text[:-1]


def read_whole_events(run: Path, begin: int, most: int) -> bytes:
    """Whole lines from the byte `begin` of the text on, in about `most` bytes at a time. Raises
    `RunFolderError`."""
    position, found = 0, b""
    for _, file in _files(run):
        nbytes = os.fstat(file.fileno()).st_size
        if position + nbytes > begin and len(found) < most:
            file.seek(max(0, begin - position))
            found += file.read(most)
        position += nbytes
    return found[: found.rfind(b"\n") + 1]


def state_lines(run: Path) -> Iterator[Line]:
    """Those of the states of workers, the older file first; none where neither is there. Raises
    `RunFolderError`."""
    with ExitStack() as opened:
        newest, older = run / STATES, run / OLDER_STATES
        files = [(newest, opened.enter_context(_open(newest)))] if newest.exists() else []
        if older.exists():  # as the newest was at first, perhaps
            file = opened.enter_context(_open(older))
            if not any(_is_same(file, other) for _, other in files):
                files.insert(0, (older, file))
        yield from _lines(files)


def whole_state_lines(run: Path) -> Iterator[bytes]:
    """The lines without their ends, and without a torn one. Raises `RunFolderError`."""
    for line in state_lines(run):
        if line.text.endswith(b"\n"):
            yield line.text[:-1]


class LineFile:
    """A file to which whole lines of JSON are appended. Raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - `close` does
        self.nbytes = os.fstat(self._file.fileno()).st_size
        """What it holds."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line whole or, when the file system refuses, not at all."""
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        left, file = line, self._file.fileno()
        try:
            while left:
                left = left[os.write(file, left) :]
        except OSError:
            with suppress(OSError):
                os.truncate(file, self.nbytes)
            raise
        self.nbytes += len(line)

    def sync(self) -> None:
        """Make the lines so far durable."""
        os.fsync(self._file.fileno())

    def is_at(self, path: Path) -> bool:
        """Whether the file is still there. Raises `OSError`."""
        return os.path.samestat(path.stat(), os.fstat(self._file.fileno()))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def drop_torn_line(path: Path) -> None:
    """So that the next line does not go on where a crash broke off."""
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)


def older_files(run: Path) -> list[Path]:
    """Those that were set aside, oldest first."""
    numbers = {path: match for path in run.glob("events-*.jsonl") if (match := _number(path))}
    return sorted(numbers, key=lambda path: numbers[path])


def set_newest_aside(run: Path) -> None:
    """Let another `events.jsonl` begin. Raises `OSError`."""
    number = max(map(_number, older_files(run)), default=0) + 1
    os.replace(run / NEWEST, run / f"events-{number:06d}.jsonl")


def _lines(files: Iterable[tuple[Path, BinaryIO]]) -> Iterator[Line]:
    position = 0
    for path, file in files:  # the last may grow meanwhile
        for number, text in enumerate(file, start=1):
            position += len(text)
            yield Line(f"{path}, line {number}", text, position)


def _is_same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))


def _number(path: Path) -> int:
    """It grows with every file that is set aside; 0 for other files."""
    match = OLDER.fullmatch(path.name)
    return int(match[1]) if match else 0


def _files(run: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """All files, oldest first, as they were at one moment: `events.jsonl` is opened first, since it
    may be set aside while the others are read, and then it is the last of them that counts."""
    with ExitStack() as opened:
        newest, last = run / NEWEST, None
        try:
            last = opened.enter_context(open_file(newest))
        except UnreadableFile as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise _explained(error) from error
        for path in older_files(run):
            if last is not None and os.path.samestat(path.stat(), os.fstat(last.fileno())):
                break
            with _open(path) as file:
                yield path, file
        if last is not None:
            yield newest, last


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with open_file(path) as file:
            yield file
    except UnreadableFile as error:
        raise _explained(error) from error


def _explained(error: UnreadableFile) -> RunFolderError:
    return RunFolderError(f"{error.path}: {error.problem}; give the folder of a run")
