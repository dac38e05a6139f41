"""The roll-ups of a run: what its workers did, in lines that become coarser the longer ago it was.

Each line that is appended goes to the finest level, the one of 10 s, as it is: it says what was
counted since the line before. The lines of a level become those of the next one, of 2 min, 30 min
and 8 h: a coarse line is made of as many as are together no longer than its level says. A line that
is longer, since the coordinator was away meanwhile, is one of its own at every level; it says what
happened on average in its time, and whoever asks for a part of that time is told a part of its
counts, in proportion.

A level has two files, which are of a bounded size, and the older one is lost when the newer one is
full (`rollup_files`). What is in it is part of a line of the next level by then, so that nothing is
ever missing but fineness; only the coarsest level forgets, and the ledger has the sums of all.

A coarse line is on disk before the line that comes after those that it is made of. So whatever was
written before a crash says the same at all levels, and what a coarse line is being made of is found
again in the files.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spotlight.errors import RunFolderError
from spotlight.record.ledger import RollupLine
from spotlight.record.rollup_merging import Bucket, merged, part_of
from spotlight.store.rollup_files import (
    Frame,
    LevelFile,
    LevelWriter,
    open_level_file,
    paths_of,
)

FOLDER = "rollups"
LEVELS = {"10s": 10.0, "2min": 120.0, "30min": 1800.0, "8h": 28800.0}
"""How long the lines of each level are, in seconds."""
HALF = 8 << 20
"""Most bytes of each of the two files of a level."""


class Rollups:
    """Writes them; nobody else may meanwhile. What a crash left torn is dropped.

    Args:
        folder: `rollups/` of a run folder.
        half: most bytes of a file.

    Raises `RunFolderError`, as its methods do: what could not be written may be tried again.
    """

    def __init__(self, folder: Path, *, half: int = HALF) -> None:
        self._folder = folder
        self._levels: list[_Level] = []
        """The finest comes first."""
        with _explaining(folder), ExitStack() as files:
            if folder.is_symlink():
                raise RunFolderError(f"{folder} is a link, not a folder; remove it")
            folder.mkdir(exist_ok=True)
            above: _Level | None = None
            for name, width_s in reversed(LEVELS.items()):
                file = LevelWriter(folder, name, half)
                files.callback(file.close)
                above = _Level(file, width_s, above)
                self._levels.insert(0, above)
            self._collect()
            self._files = files.pop_all()

    @property
    def last(self) -> int:
        """The number of the last line; 0 if there is none."""
        return self._levels[0].file.last

    def append(self, line: RollupLine) -> None:
        """Add a line, and make it durable. Its number must be higher than that of the last one."""
        if line.number <= self.last:
            raise ValueError(f"line {line.number} comes after line {self.last}")
        if line.end_s < line.start_s:
            raise ValueError(f"line {line.number} ends at {line.end_s}, before {line.start_s}")
        with _explaining(self._folder):
            self._levels[0].add(line, 1)

    def drop_after(self, number: int) -> None:
        """Drop lines with a higher number: a crash came before the ledger accounted for them."""
        with _explaining(self._folder):
            for level in self._levels:
                level.file.drop_after(number)
        self._collect()

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _collect(self) -> None:
        """Find again of what coarse lines are being made, the coarsest first: what is found may
        make one of the next level."""
        with _explaining(self._folder):
            for name, level in reversed(list(zip(LEVELS, self._levels, strict=True))):
                if level.above is not None:
                    level.above.bucket = Bucket()
                    last = level.above.file.last
                    with _open_level(self._folder, name) as frames:
                        for frame in frames:
                            if frame.number > last:
                                level.pass_on(frame)


class _Level:
    """A level that is written."""

    def __init__(self, file: LevelWriter, width_s: float, above: _Level | None) -> None:
        self.file = file
        self.above = above
        self.bucket = Bucket()
        """The next line is being made of this."""
        self._width_s = width_s

    def add(self, line: RollupLine, count: int) -> None:
        """The next line, which is made of so many of the finest level."""
        if self.above is not None:
            self.above.make_room(line)
        data = self.file.encoded(line, count)
        if not self.file.fits(data):
            if self.above is not None:
                self.above.close_bucket()
            self.file.set_aside()
            data = self.file.encoded(line, count)
        self.file.append(line, data)
        if self.above is not None:
            self.above.bucket.add(line, count)

    def pass_on(self, frame: Frame) -> None:
        """Let the next level know of a line that is on disk; one that is damaged is left out."""
        line = frame.line()
        if line is not None and self.above is not None:
            self.above.make_room(line)
            self.above.bucket.add(line, frame.made_of)

    def make_room(self, line: RollupLine) -> None:
        """The line is about to come: close the bucket if it would become too long with it."""
        if line.end_s - self.bucket.start_s > self._width_s:
            self.close_bucket()

    def close_bucket(self) -> None:
        """Make a line of what there is."""
        if self.bucket.count:
            self.add(self.bucket.line(), self.bucket.count)
            self.bucket = Bucket()


def read_rollups(
    folder: Path, from_s: float, to_s: float, most: int, *, until: int | None = None
) -> list[RollupLine]:
    """What workers did between these times, in at most `most` lines: those of `each_rollup`."""
    return list(each_rollup(folder, from_s, to_s, most, until=until))


def each_rollup(
    folder: Path, from_s: float, to_s: float, most: int, *, until: int | None = None
) -> Iterator[RollupLine]:
    """What workers did between these times, in at most `most` lines, in order of time: as finely as
    that allows and as it is still on disk, but mostly in more than half as many. A line that goes
    beyond the times counts in proportion. None where there are no roll-ups.

    They are read one by one: of many workers all of them would be large.

    Args:
        folder: `rollups/` of a run folder, which may be written meanwhile.
        until: lines with a higher number do not count: that of the ledger.

    Raises `RunFolderError`.
    """
    with _explaining(folder), ExitStack() as opened:
        # The coarsest first: what is written meanwhile is found in a finer one, and not in both.
        levels = [
            _Frames(opened.enter_context(_open_level(folder, name)), until)
            for name in reversed(LEVELS)
        ]
        frames = _chosen(levels, from_s, to_s, most)
        lines: Iterator[RollupLine] = (
            part_of(line, from_s, to_s) for frame in frames if (line := frame.line()) is not None
        )
        if len(frames) > most:
            start_s = max(from_s, frames[0].start_s)
            lines = merged(lines, start_s, min(to_s, frames[-1].end_s), most)
        yield from lines


class _Frames:
    """Those of a level, in order."""

    def __init__(self, frames: list[Frame], until: int | None) -> None:
        self.all = [each for each in frames if until is None or each.number <= until]
        self._numbers = [each.number for each in self.all]

    def between(self, number: int, last: int) -> list[Frame]:
        """Those with a number above the first up to the last."""
        low, high = (bisect_right(self._numbers, each) for each in (number, last))
        return self.all[low:high]

    def count(self, from_s: float, to_s: float) -> int:
        """How many there are between these times."""
        return sum(_is_between(each, from_s, to_s) for each in self.all)

    def after(self, number: int) -> list[Frame]:
        """Those with a number above."""
        return self.all[bisect_right(self._numbers, number) :]


def _chosen(levels: list[_Frames], from_s: float, to_s: float, most: int) -> list[Frame]:
    """The lines that say what is between these times, about as finely as `most` lines do.

    Args:
        levels: from the coarsest on.
    """
    found: list[tuple[int, int, Frame]] = []
    last = 0
    for level, frames in enumerate(levels):
        for frame in frames.after(last):
            found.append((level, last, frame))
            last = frame.number
    if found and to_s >= max(frame.end_s for *_, frame in found):
        to_s = math.inf
    many = (at for at, each in enumerate(levels) if 2 * each.count(from_s, to_s) >= most)
    deepest = next(many, len(levels) - 1)
    return [
        part
        for level, before, frame in found
        if _is_between(frame, from_s, to_s)
        for part in _refined(levels[level : deepest + 1], before, frame)
        if _is_between(part, from_s, to_s)
    ]


def _refined(levels: list[_Frames], before: int, frame: Frame) -> list[Frame]:
    """A line of the first of these levels, or what it is made of in the last of them, as far as
    that is still there.

    Args:
        before: the number of the line before it.
    """
    parts = levels[1].between(before, frame.number) if len(levels) > 1 else []
    if not parts or sum(part.made_of for part in parts) != frame.made_of:
        return [frame]
    found: list[Frame] = []
    for part in parts:
        found += _refined(levels[1:], before, part)
        before = part.number
    return found


def _is_between(frame: Frame, from_s: float, to_s: float) -> bool:
    if frame.start_s == frame.end_s:
        return from_s <= frame.start_s < to_s
    return frame.start_s < to_s and frame.end_s > from_s


class RollupReader:
    """Follows the roll-ups of a run that is written.

    Args:
        folder: `rollups/` of a run folder.
        after: only lines with a higher number are wanted.
    """

    def __init__(self, folder: Path, after: int = 0) -> None:
        self.last = after
        """The number of the last line that was given."""
        self._newer, self._older = paths_of(folder, next(iter(LEVELS)))
        self._opened = ExitStack()
        self._file: LevelFile | None = None
        self._latest: Frame | None = None
        """The last line that was read of the open file."""

    def read(self) -> list[RollupLine] | None:
        """The lines of the finest level that were written since. None if what was given does not
        hold any more, as after a crash: `read_rollups` says what does, and a new reader goes on
        from there. Raises `RunFolderError`."""
        lines: list[RollupLine] = []
        with _explaining(self._newer):
            if self._file is None and not (self._open(self._older) or self._open(self._newer)):
                return []
            while True:
                file = self._file
                assert file is not None, "it was opened"
                if not self._still_holds(file):
                    return None
                is_older = not _is_at(file, self._newer)
                lines += self._new_lines(file)
                if not is_older:
                    return lines
                if not _is_at(file, self._older):
                    return None
                if not self._open(self._newer):
                    return lines

    def close(self) -> None:
        """Close its file."""
        self._opened.close()

    def _open(self, path: Path) -> bool:
        """Go on with the beginning of a file; whether it is there."""
        opened = ExitStack()
        file = _opened_file(path, opened)
        if file is None:
            return False
        self._opened.close()
        self._opened, self._file, self._latest = opened, file, None
        return True

    def _still_holds(self, file: LevelFile) -> bool:
        """Whether nothing that was read was cut off."""
        return self._latest is None or file.has(self._latest)

    def _new_lines(self, file: LevelFile) -> list[RollupLine]:
        lines = []
        for frame in file.frames():
            self._latest = frame
            if frame.number > self.last:
                self.last = frame.number
                line = frame.line()
                if line is not None:
                    lines.append(line)
        return lines


@contextmanager
def _open_level(folder: Path, name: str) -> Iterator[list[Frame]]:
    """The lines of a level as they are at one moment: the newer file is opened first, since it may
    become the older one meanwhile."""
    newer_path, older_path = paths_of(folder, name)
    with ExitStack() as opened:
        newer = _opened_file(newer_path, opened)
        older = _opened_file(older_path, opened)
        if older is not None and newer is not None and _is_at(newer, older_path):
            older = None
        latest = [] if newer is None else list(newer.frames())
        before = [] if older is None else list(older.frames())
        if latest:  # a copy may have one file under both names
            before = [frame for frame in before if frame.number < latest[0].number]
        yield before + latest


def _opened_file(path: Path, opened: ExitStack) -> LevelFile | None:
    """None if it is not there, or not begun."""
    try:
        return opened.enter_context(open_level_file(path))
    except RunFolderError:
        if path.exists():
            raise
        return None


def _is_at(file: LevelFile, path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.file.fileno()))
    except FileNotFoundError:
        return False


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or path}: {error.strerror or error}; free some space or give another"
            " --run-folder, then continue with --resume"
        ) from error
