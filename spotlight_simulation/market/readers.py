"""Reads public traces of spot markets, by what is in a file. `docs/replay.md` lists the formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, TypeVar

import msgspec

from spotlight.errors import UnreadableFile, UserError
from spotlight.files import MEBIBYTE, read_text
from spotlight.report.formatting import count as number_of
from spotlight_simulation.market.trace import Count, Hole, Life, Trace, counts_of

Number = TypeVar("Number", int, float)

SHIPPED = Path(__file__).parent / "traces"
"""The traces that ship with Spotlight, each folder with its licence."""
_LARGEST = 16 * MEBIBYTE
_STANDS_STILL_S = 60.0
"""A clock that goes back by no more is taken as standing still: one log of several machines does
so. [s]"""
_JUMPS_S = 366 * 86400.0
"""A clock that goes ahead by more is wrong, such as one that began in 1970. [s]"""
_SILENT_S = 3600.0
"""It is said where a log has no row for longer. [s]"""
_MOST_NODES = 100_000
"""No market has more."""
_A_HOLE = 1.5
"""Rows that are due at equal times leave a hole when one comes so many times as late."""
_PROBES = "availability"
"""The folder in which SkyPilot keeps what it launched and deleted at once."""
_HEADER = "scheduled_at"


def read_trace(path: Path | str, zone: str | None = None) -> Trace:
    """Read one zone of a trace, from a file or from one that ships with Spotlight, which is named
    by its path in `SHIPPED`.

    Args:
        zone: for a file with several zones.

    Raises `UserError` that names the file and the line, for what cannot be read.
    """
    file = _found(Path(path))
    try:
        text = read_text(file, most=_LARGEST)
    except UnreadableFile as error:
        raise UserError(f"{file}: {error.problem}; give a trace of a spot market") from error
    trace = _Reader(file, text.strip()).trace(zone)
    if not 0 < trace.seconds < math.inf:
        raise UserError(f"{file}: the trace has no length; it needs two moments at least")
    return trace


def shipped_traces() -> list[str]:
    """The names of the traces that ship with Spotlight."""
    files = (file for file in SHIPPED.rglob("*.*") if file.is_file())
    return sorted(str(file.relative_to(SHIPPED)) for file in files)


def _found(path: Path) -> Path:
    if path.exists() or path.is_absolute():
        return path
    if (SHIPPED / path).is_file():
        return SHIPPED / path
    raise UserError(
        f"{path}: there is no such file, and no trace of that name ships with Spotlight; those are"
        f" {', '.join(shipped_traces())}"
    )


class _Listed(msgspec.Struct, frozen=True):
    """What a line tells of an event, beside a paper's own plans."""

    nodes: tuple[str, ...]
    duration: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How long nothing else happens, in milliseconds."""


class _Filled(msgspec.Struct, frozen=True):
    """Ticks that a file made up."""

    gap_start_index: int
    gap_end_index: int


class _Metadata(msgspec.Struct, frozen=True):
    gap_seconds: Annotated[float, msgspec.Meta(gt=0, le=_JUMPS_S)]
    gap_filled: _Filled | None = None


class _Ticks(msgspec.Struct, frozen=True):
    metadata: _Metadata
    data: tuple[Annotated[int, msgspec.Meta(ge=0, le=_MOST_NODES)] | None, ...]


class _Reader:
    """Of one file."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._text = text
        self._name = f"{file.parent.name}/{file.stem}".lstrip("/")

    def trace(self, zone: str | None) -> Trace:
        """What is in it."""
        first = self._text.partition("\n")[0]
        if first.startswith(f"{_HEADER},"):
            return self._zones(zone)
        if zone is not None:
            raise UserError(f"{self._file}: has one zone, without a name; leave the zone out")
        if first.startswith("{"):
            return self._ticks()
        if first.startswith("["):
            return self._of_nodes(self._listed())
        cells = len(first.split(","))
        if cells == 2:
            return self._of_counts(self._totals())
        if cells == 3 and not first[:8].isdigit() and "-" in first.split(",")[0]:
            return self._of_counts(self._dated(), is_log=True)
        if cells == 3:
            return self._of_nodes(self._named())
        raise UserError(
            f"{self._file}: this is no format of a trace that is known; see docs/replay.md for"
            " those that are"
        )

    # --- nodes that have names ---

    def _of_nodes(self, events: Iterator[tuple[int, float, str, Sequence[str]]]) -> Trace:
        since: dict[str, float] = {}
        lives, at_s = [], 0.0
        for line, now_s, what, nodes in events:
            self._check_clock(line, at_s, now_s)
            at_s = now_s
            for node in nodes:
                if what == "add" and node not in since:
                    since[node] = at_s
                elif what == "remove" and node in since:
                    from_s = since.pop(node)
                    if from_s < at_s:  # otherwise nobody ever had the node
                        lives.append(Life(from_s, at_s, is_taken=True))
                else:
                    is_there = "there already" if node in since else "not there"
                    raise self._error(line, f"`{what}` {node}, which is {is_there}")
        lives += [Life(from_s, at_s, is_taken=False) for from_s in since.values()]
        lives.sort()
        counts = counts_of(lives)
        return Trace(
            market=self._name,
            is_held=True,
            seconds=at_s,
            places=max((count.nodes for count in counts), default=0),
            counts=counts,
            lives=tuple(lives),
        )

    def _named(self) -> Iterator[tuple[int, float, str, Sequence[str]]]:
        """Lines `milliseconds,add|remove,node`."""
        for line, cells in self._rows(3):
            if cells[1] not in ("add", "remove"):
                raise self._error(line, f"`{cells[1]}` is neither `add` nor `remove`")
            yield line, self._number(line, cells[0]) / 1000, cells[1], cells[2:]

    def _listed(self) -> Iterator[tuple[int, float, str, Sequence[str]]]:
        """Lines `[milliseconds, "add|remove|no-op|DONE", {"nodes": [...]}]`."""
        end_s = 0.0
        for line, text in enumerate(self._text.splitlines(), 1):
            try:
                at_ms, what, more = msgspec.json.decode(text, type=tuple[float, str, _Listed])
            except (msgspec.DecodeError, RecursionError) as error:
                raise self._error(line, f"is no event: {error}") from error
            if what not in ("add", "remove", "no-op", "DONE"):
                raise self._error(line, f"`{what}` is no event that is known")
            yield line, at_ms / 1000, what, more.nodes
            end_s = (at_ms + more.duration) / 1000
        yield 0, end_s, "DONE", ()

    # --- counts ---

    def _of_counts(
        self, counts: Iterator[tuple[int, float, int]], *, is_log: bool = False
    ) -> Trace:
        """A log has rows without a change, too."""
        found: dict[float, int] = {}
        at_s, mended = 0.0, 0
        for line, now_s, nodes in counts:
            self._check_clock(line, at_s, now_s, back_s=_STANDS_STILL_S)
            mended += now_s < at_s
            at_s = max(at_s, now_s)
            found[at_s] = nodes
        often, most_s = number_of(mended, "time"), f"{_STANDS_STILL_S:g} s"
        remarks = [f"the clock goes back {often}, by at most {most_s}: it stands"] if mended else []
        silent_s = max((after - before for before, after in pairwise(found)), default=0.0)
        if is_log and silent_s > _SILENT_S:
            remarks.append(
                f"up to {silent_s / 3600:.1f} h have no row: as many nodes as before are taken to"
                " be there"
            )
        return Trace(
            market=self._name,
            is_held=True,
            seconds=at_s,
            places=max(found.values(), default=0),
            counts=tuple(Count(*each) for each in found.items()),
            remarks=tuple(remarks),
        )

    def _totals(self) -> Iterator[tuple[int, float, int]]:
        """Lines `milliseconds,count`."""
        for line, cells in self._rows(2):
            yield line, self._number(line, cells[0]) / 1000, self._count(line, cells[1])

    def _dated(self) -> Iterator[tuple[int, float, int]]:
        """Lines `YYYY-MM-DD, HH:MM:SS, count`."""
        first: datetime | None = None
        for line, cells in self._rows(3):
            moment = self._moment(line, f"{cells[0]}T{cells[1]}")
            first = first or moment
            yield line, (moment - first).total_seconds(), self._count(line, cells[2])

    def _ticks(self) -> Trace:
        """An object with `metadata.gap_seconds` and a count for each tick in `data`."""
        try:
            ticks = msgspec.json.decode(self._text, type=_Ticks)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UserError(f"{self._file}: is no list of ticks: {error}") from error
        gap_s, filled = ticks.metadata.gap_seconds, ticks.metadata.gap_filled
        counts = list(ticks.data)
        if filled is not None:  # SkyNomad's files, in which 0 is a launch that worked
            unknown = range(filled.gap_start_index, filled.gap_end_index + 1)
            counts = [
                None if tick in unknown or count is None else int(not count)
                for tick, count in enumerate(counts)
            ]
        if counts and all(count is None for count in counts):
            raise UserError(f"{self._file}: has no data, only holes; give another trace")
        return Trace(
            market=self._name,
            is_held=filled is None and _PROBES not in self._file.absolute().parts,
            seconds=len(counts) * gap_s,
            places=max((count for count in counts if count is not None), default=0),
            counts=tuple(
                Count(tick * gap_s, count) for tick, count in enumerate(counts) if count is not None
            ),
            holes=tuple(_holes_of_ticks(counts, gap_s)),
        )

    def _zones(self, zone: str | None) -> Trace:
        """A table with the column `scheduled_at` and one for each zone; what an empty cell would
        tell is not known."""
        header, *rows = self._text.splitlines()
        zones = [cell.strip() for cell in header.split(",")[1:]]
        twice = next((one for one in zones if zones.count(one) > 1), None)
        if twice is not None:
            raise UserError(
                f"{self._file}: has two zones `{twice}`; give each column a name of its own"
            )
        if zone is None and len(zones) == 1:
            (zone,) = zones
        if zone not in zones:
            said = "has several zones" if zone is None else f"has no zone `{zone}`"
            raise UserError(f"{self._file}: {said}; choose one of {', '.join(zones)}")
        moments, counts, places = [], [], 0
        for line, row in enumerate(rows, 2):
            cells = row.split(",")
            if len(cells) != len(zones) + 1:
                raise self._error(
                    line, f"has {number_of(len(cells), 'cell')}, not {len(zones) + 1}"
                )
            moments.append(self._moment(line, cells[0]))
            every = [self._count(line, cell) if cell.strip() else None for cell in cells[1:]]
            places = max([places, *(count for count in every if count is not None)])
            counts.append(every[zones.index(zone)])
            if len(moments) > 1 and moments[-1] <= moments[-2]:
                raise self._error(line, "the clock goes back")
        times = [round((moment - moments[0]).total_seconds()) for moment in moments]
        if len(times) < 2:
            raise UserError(f"{self._file}: has fewer than two rows")
        usual_s = median(after - before for before, after in pairwise(times))
        known = tuple(
            Count(at_s, count)
            for at_s, count in zip(times, counts, strict=True)
            if count is not None
        )
        if not known:
            raise UserError(f"{self._file}: zone `{zone}` has no data; choose another one")
        seconds = times[-1] + usual_s
        return Trace(
            market=f"{self._name}/{zone}",
            is_held=False,
            seconds=seconds,
            places=places,
            counts=known,
            holes=tuple(_holes_between(known, usual_s, seconds)),
        )

    # --- cells ---

    def _rows(self, width: int) -> Iterator[tuple[int, list[str]]]:
        for line, row in enumerate(self._text.splitlines(), 1):
            cells = [cell.strip() for cell in row.split(",")]
            if len(cells) != width:
                raise self._error(line, f"has {number_of(len(cells), 'cell')}, not {width}")
            yield line, cells

    def _number(self, line: int, text: str) -> float:
        return self._parsed(line, text, float, "a time in milliseconds")

    def _count(self, line: int, text: str) -> int:
        nodes = self._parsed(line, text, int, "a number of nodes")
        if nodes > _MOST_NODES:
            raise self._error(line, f"{nodes:,} nodes are more than any market has")
        return nodes

    def _parsed(self, line: int, text: str, read: Callable[[str], Number], what: str) -> Number:
        try:
            number = read(text)
        except ValueError as error:
            raise self._error(line, f"`{text}` is not {what}") from error
        if not 0 <= number < math.inf:
            raise self._error(line, f"`{text}` is not {what}: it must be 0 at least")
        return number

    def _moment(self, line: int, text: str) -> datetime:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise self._error(line, f"`{text}` is no date with a time") from error
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def _check_clock(self, line: int, from_s: float, to_s: float, *, back_s: float = 0.0) -> None:
        """It may go back by so much."""
        if from_s - back_s <= to_s <= from_s + _JUMPS_S:
            return
        goes = "goes back" if to_s < from_s else "jumps"
        raise self._error(
            line,
            f"the clock {goes} from {from_s:g} to {to_s:g} s; times must count on from the"
            " beginning of the trace",
        )

    def _error(self, line: int, problem: str) -> UserError:
        return UserError(f"{self._file}, line {line}: {problem}")


def _holes_of_ticks(counts: Sequence[int | None], gap_s: float) -> Iterator[Hole]:
    """One for all ticks in a row that have no count."""
    since: int | None = None
    for tick, count in enumerate([*counts, 0]):
        if count is None and since is None:
            since = tick
        elif count is not None and since is not None:
            yield Hole(since * gap_s, tick * gap_s)
            since = None


def _holes_between(counts: Sequence[Count], usual_s: float, end_s: float) -> Iterator[Hole]:
    """One wherever a count comes too late: each is due so long after the one before it, the first
    at the beginning, and the last tells of as long."""
    moments = [-usual_s, *(count.at_s for count in counts), end_s]
    for before_s, after_s in pairwise(moments):
        if after_s - before_s > _A_HOLE * usual_s:
            yield Hole(before_s + usual_s, after_s)
