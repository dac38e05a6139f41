"""What workers did in a span of a run's time, at the best resolution there is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotlight.errors import RunFolderError
from spotlight.record.run_events import WorkerStateBegan, decode_event
from spotlight.report.run_view import MOST_BUCKETS, Areas, LanePart, RunView
from spotlight.report.view_fleet import node_of
from spotlight.report.view_times import TimeShares
from spotlight.store.ledger_file import read_ledger
from spotlight.store.record_files import OLDER_STATES, STATES, whole_state_lines
from spotlight.store.rollups import FOLDER, read_rollups

_MOST_STATES = 16 << 20
"""Bytes of the files of states."""
_BEGINNING_S = 1.0
"""States that begin so early are those of the whole run."""


class WantedTime(NamedTuple):
    """A span of run time; None stands for the beginning, or the end, of the run."""

    from_s: float | None
    to_s: float | None


class ShownTime(msgspec.Struct, frozen=True):
    """What each pool's time went to, and what workers or nodes did."""

    areas: Areas
    lanes: tuple[LanePart, ...]


def time_of(folder: Path, view: RunView, wanted: WantedTime) -> ShownTime:
    """What is known of that span: of areas by the roll-ups, of lanes by the states of workers where
    these go back so far; without them by what is shown already."""
    from_s = max(0.0, wanted.from_s or 0.0)
    to_s = math.inf if wanted.to_s is None else wanted.to_s
    if from_s >= to_s:
        return ShownTime(Areas(edges=(), pools={}), ())
    areas, lanes = view.areas, view.lanes
    try:
        shares = _by_rollups(folder, from_s, to_s)
        if shares is not None:
            areas, lanes = _moved(shares.areas(), from_s), _lanes(shares, from_s)
        shares = _by_states(folder, from_s, min(to_s, view.job.time_s))
        if shares is not None:
            lanes = _lanes(shares, from_s)
    except RunFolderError:  # the view says so
        pass
    return ShownTime(areas, lanes)


def _by_rollups(folder: Path, from_s: float, to_s: float) -> TimeShares | None:
    """From `from_s` on, which is 0 there; None if there are none."""
    ledger = read_ledger(folder)
    lines = read_rollups(folder / FOLDER, from_s, to_s, MOST_BUCKETS, until=ledger.number)
    pools = {bill.node: bill.pool for bill in ledger.bills}
    shares = TimeShares()
    for line in lines:
        start_s, end_s = line.start_s - from_s, line.end_s - from_s
        moved = msgspec.structs.replace(line, start_s=start_s, end_s=end_s)
        shares.line(moved, lambda worker: pools.get(node_of(worker), "spot"))
    return shares if lines else None


def _by_states(folder: Path, from_s: float, to_s: float) -> TimeShares | None:
    """The same; None if they do not go back so far, or there are too many to be read at once."""
    files = [folder / name for name in (STATES, OLDER_STATES)]
    nbytes = sum(file.stat().st_size for file in files if file.exists())
    if not 0 < nbytes <= _MOST_STATES:
        return None
    shares, doing, first_s = TimeShares(), dict[str, WorkerStateBegan](), math.inf
    for line in whole_state_lines(folder):
        try:
            event = decode_event(line)
        except msgspec.MsgspecError:
            continue
        if not isinstance(event, WorkerStateBegan) or event.time_s > to_s:
            continue
        first_s = min(first_s, event.time_s)
        if (before := doing.get(event.worker)) is not None:
            _count(shares, before, max(before.time_s, from_s) - from_s, event.time_s - from_s)
        doing[event.worker] = event
    for event in doing.values():
        _count(shares, event, max(event.time_s, from_s) - from_s, to_s - from_s)
    return shares if first_s <= from_s or first_s < _BEGINNING_S else None


def _count(shares: TimeShares, event: WorkerStateBegan, start_s: float, end_s: float) -> None:
    if event.state != "gone":
        node = event.node or node_of(event.worker)
        shares.interval(event.worker, node, event.pool, event.state, start_s, end_s)


def _moved(areas: Areas, by_s: float) -> Areas:
    edges = tuple(round(edge + by_s, 3) for edge in areas.edges)
    return msgspec.structs.replace(areas, edges=edges)


def _lanes(shares: TimeShares, by_s: float) -> tuple[LanePart, ...]:
    return tuple(
        msgspec.structs.replace(
            lane,
            parts=tuple(
                (state, round(start + by_s, 3), round(end + by_s, 3))
                for state, start, end in lane.parts
            ),
        )
        for lane in shares.lanes()
    )
