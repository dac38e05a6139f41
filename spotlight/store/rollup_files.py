"""One level of the roll-ups on disk: two files, of which the older one makes room for the other.

    LEVEL.rollup        the newer lines
    LEVEL-older.rollup  the lines before them

A file begins with a line of JSON that names its format and the states of workers, which are numbers
in what follows. Then come records: a fixed head, and a body that is compressed. A record either has
a line, with workers as numbers, or the names of the workers that have the next numbers. So each
file can be read without any other.

A crash may leave half a record at the end. A file is read up to the first record that is not whole
or not sound, and its writer cuts it there.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec
import structlog

from spotlight.errors import RunFolderError, UnreadableFile
from spotlight.files import open_file
from spotlight.record.ledger import TIME_STATES, Milliseconds, RollupLine, TimeState
from spotlight.store.run_folder import replace_file

FORMAT = 1
_RECORD = struct.Struct("<cIIQddd")
"""Kind, bytes of the body; of a line also how many of the finest level it is made of, its number,
start, end and date."""
_NAMES, _LINE = b"N", b"L"
_LONGEST_HEAD = 4096
_STATES = frozenset(TIME_STATES)
_BITS: dict[TimeState, int] = {state: 1 << place for place, state in enumerate(TIME_STATES)}
OR_LESS = "and what workers did will be shown less finely"

log = structlog.get_logger(__name__)


class _Head(msgspec.Struct, frozen=True):
    format: int
    states: tuple[str, ...] = ()


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """Of a record with a line."""

    workers: list[int]
    """The number of the first worker, then how far it is from each to the next."""
    states: list[int]
    """Each worker has a bit for each state that it was in."""
    milliseconds: list[int]
    """Each of these bits has its time, from the lowest bit up."""
    spent: dict[str, float]


_HEAD = msgspec.json.Decoder(_Head)
_BODY = msgspec.msgpack.Decoder(_Body)
_WORKERS = msgspec.msgpack.Decoder(list[str])
_ENCODER = msgspec.msgpack.Encoder()


class Frame(NamedTuple):
    """A line as far as its head tells."""

    file: LevelFile
    place: int
    """The byte at which its record begins."""
    nbytes: int
    """The size of its body."""
    names: int
    """How many workers the file had named before it."""
    made_of: int
    """How many lines of the finest level it is made of."""
    number: int
    start_s: float
    end_s: float
    at: float

    def line(self) -> RollupLine | None:
        """All of it; None if it is damaged."""
        return self.file.line(self)


class LevelFile:
    """A file of a level, open to be read; see `open_level_file`.

    Raises `RunFolderError` naming a file that is none of these, or of a later version.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.names: list[str] = []
        """The names of the workers, by their numbers."""
        self.end = self.begin = 0
        """The file was read up to the one byte, and its records begin at the other; both are 0 if
        its head is not whole."""
        self.states: tuple[TimeState, ...] = ()
        head = file.readline(_LONGEST_HEAD)
        if head.endswith(b"\n"):
            self.states = _states_of(path, head)
            self.end = self.begin = len(head)
        self._by_mask: dict[int, tuple[TimeState, ...]] = {}

    def frames(self) -> Iterator[Frame]:
        """Of the lines from `end` on, of which there may be more each time."""
        if not self.begin:
            return
        nbytes = os.fstat(self.file.fileno()).st_size
        place, names = self.end, list[str]()
        while place + _RECORD.size <= nbytes:
            self.file.seek(place)
            head = self.file.read(_RECORD.size)
            if len(head) < _RECORD.size:
                return
            kind, length, *told = _RECORD.unpack(head)
            following = place + _RECORD.size + length
            if kind not in (_NAMES, _LINE) or following > nbytes:
                return
            if kind == _NAMES:
                try:
                    names += _WORKERS.decode(zlib.decompress(self.file.read(length)))
                except (zlib.error, msgspec.MsgspecError):
                    return
            else:  # names count with the line that needs them
                self.names += names
                self.end, names = following, []
                yield Frame(self, place, length, len(self.names), *told)
            place = following

    def has(self, frame: Frame) -> bool:
        """Whether a line of it is still there."""
        self.file.seek(frame.place)
        told = frame.made_of, frame.number, frame.start_s, frame.end_s, frame.at
        return self.file.read(_RECORD.size) == _RECORD.pack(_LINE, frame.nbytes, *told)

    def line(self, frame: Frame) -> RollupLine | None:
        """The whole of a line; None if it is damaged."""
        self.file.seek(frame.place + _RECORD.size)
        try:
            body = _BODY.decode(zlib.decompress(self.file.read(frame.nbytes)))
            times = self._times(body)
        except (zlib.error, msgspec.MsgspecError, IndexError, ValueError):
            return None
        return RollupLine(
            number=frame.number,
            start_s=frame.start_s,
            end_s=frame.end_s,
            at=frame.at,
            times=times,
            spent=body.spent,
        )

    def _times(self, body: _Body) -> dict[str, Milliseconds]:
        times: dict[str, Milliseconds] = {}
        names, known, milliseconds = self.names, self._by_mask, body.milliseconds
        worker = place = 0
        for step, mask in zip(body.workers, body.states, strict=True):
            worker += step
            states = known.get(mask)
            if states is None:
                states = known[mask] = tuple(_in_mask(self.states, mask))
            following = place + len(states)
            times[names[worker]] = dict(zip(states, milliseconds[place:following], strict=True))
            place = following
        return times


class LevelWriter:
    """Appends to the two files of a level.

    Args:
        half: the most bytes of each.
    """

    def __init__(self, folder: Path, name: str, half: int) -> None:
        self._newer, self._older = paths_of(folder, name)
        self._half = half
        self._numbers: dict[str, int] = {}
        """The numbers of the workers that the newer file has named."""
        self.last = 0
        """The number of the last line; 0 if there is none."""
        for path in (self._older, self._newer):
            self._open(path)

    def fits(self, data: bytes) -> bool:
        """Whether the newer file has room for what was encoded for it."""
        return self._is_todays and self._size + len(data) <= self._half

    def encoded(self, line: RollupLine, made_of: int) -> bytes:
        """What is to be appended for a line that is made of so many of the finest level."""
        unknown = [name for name in line.times if name not in self._numbers]
        numbers = self._numbers | {
            name: number for number, name in enumerate(unknown, start=len(self._numbers))
        }
        body = zlib.compress(_ENCODER.encode(_body_of(line, numbers)), 1)
        told = made_of, line.number, line.start_s, line.end_s, line.at
        record = _RECORD.pack(_LINE, len(body), *told) + body
        if unknown:
            names = zlib.compress(_ENCODER.encode(unknown), 1)
            record = _RECORD.pack(_NAMES, len(names), 0, 0, 0.0, 0.0, 0.0) + names + record
        return record

    def append(self, line: RollupLine, data: bytes) -> None:
        """Add what was encoded of a line, whole or not at all, and make it durable."""
        try:
            left = data
            while left:
                left = left[os.write(self._file.fileno(), left) :]
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), self._size)
            raise
        self._size += len(data)
        self.last = line.number
        for name in line.times:
            self._numbers.setdefault(name, len(self._numbers))

    def set_aside(self) -> None:
        """The newer file becomes the older one, which is gone, and another begins."""
        with self._file:
            if self._newer.exists():  # else it was set aside before, and none could be begun
                os.replace(self._newer, self._older)
            self._open(self._newer)

    def drop_after(self, number: int) -> None:
        """Cut the files before the first line with a higher number."""
        self._file.close()
        self.last = 0
        for path in (self._older, self._newer):
            self._open(path, most=number)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self, path: Path, most: int | None = None) -> None:
        """Cut off what is damaged, and lines with a higher number than `most`. The newer file stays
        open to be appended to."""
        is_newer = path == self._newer
        if path.is_symlink():
            raise RunFolderError(f"{path} is a link, not a file; remove it, {OR_LESS}")
        if is_newer and not _is_begun(path):
            _begin(path)
        if not path.exists():
            return
        kept: deque[Frame] = deque(maxlen=2)
        with open_level_file(path) as file:
            end = file.begin
            for frame in file.frames():
                if most is not None and frame.number > most:
                    break
                kept.append(frame)
                end = file.end
            names = file.names[: kept[-1].names] if kept else []
            if kept and kept[-1].line() is None:
                end = kept.pop().place
            states = file.states
        if end < path.stat().st_size:
            _cut(path, end)
        self.last = kept[-1].number if kept else self.last
        if is_newer:
            self._numbers = {name: number for number, name in enumerate(names)}
            self._size, self._is_todays = end, states == TIME_STATES
            # A link that took its place since is not followed.
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = open(os.open(path, flags), "ab", buffering=0)  # noqa: SIM115


def paths_of(folder: Path, name: str) -> tuple[Path, Path]:
    """The newer and the older file of a level."""
    return folder / f"{name}.rollup", folder / f"{name}-older.rollup"


@contextmanager
def open_level_file(path: Path) -> Iterator[LevelFile]:
    """A file of a level. Raises `RunFolderError`."""
    try:
        with open_file(path) as file:
            yield LevelFile(path, file)
    except UnreadableFile as error:
        raise RunFolderError(f"{error.path} {error.problem}; remove it, {OR_LESS}") from error


def _states_of(path: Path, head: bytes) -> tuple[TimeState, ...]:
    try:
        told = _HEAD.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} is damaged ({error}); remove it, {OR_LESS}") from error
    if told.format > FORMAT or not _STATES.issuperset(told.states):
        raise RunFolderError(
            f"{path} has format {told.format}, of a later Spotlight; use the Spotlight that wrote"
            f" it, or remove it, {OR_LESS}"
        )
    return cast("tuple[TimeState, ...]", told.states)


def _is_begun(path: Path) -> bool:
    """Whether the head of the file is whole."""
    if not path.exists():
        return False
    with open_level_file(path) as file:
        return file.begin > 0


def _begin(path: Path) -> None:
    """Make the file one without lines."""
    head = msgspec.json.encode(_Head(FORMAT, TIME_STATES)) + b"\n"
    replace_file(path, head)


def _cut(path: Path, nbytes: int) -> None:
    log.warning("rollups_cut", path=str(path), nbytes=path.stat().st_size - nbytes)
    os.truncate(path, nbytes)


def _body_of(line: RollupLine, numbers: dict[str, int]) -> _Body:
    workers, states, milliseconds = [], [], []
    before = 0
    for number, spent in sorted((numbers[name], spent) for name, spent in line.times.items()):
        mask = 0
        for state, bit in _BITS.items():
            if ms := spent.get(state):
                mask |= bit
                milliseconds.append(ms)
        workers.append(number - before)
        states.append(mask)
        before = number
    return _Body(workers, states, milliseconds, line.spent)


def _in_mask(states: tuple[TimeState, ...], mask: int) -> Iterator[TimeState]:
    for place, state in enumerate(states):
        if mask >> place & 1:
            yield state
