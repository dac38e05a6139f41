"""What workers did in a span of a run's time, at the best resolution there is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotlight.errors import RunFolderError
from spotlight.record.ledger import Ledger
from spotlight.report.run_view import MOST_BUCKETS, Areas, LanePart, RunView
from spotlight.report.view_fleet import node_of
from spotlight.report.view_times import TimeShares
from spotlight.store.ledger_file import read_ledger
from spotlight.store.rollups import FOLDER, read_rollups


class WantedTime(NamedTuple):
    """A span of run time; None stands for the beginning, or the end, of the run."""

    from_s: float | None
    to_s: float | None


class ShownTime(msgspec.Struct, frozen=True):
    """What each pool's time went to, and what workers or nodes did."""

    areas: Areas
    lanes: tuple[LanePart, ...]


def time_of(folder: Path, view: RunView, wanted: WantedTime) -> ShownTime:
    """What is known of that span: by the roll-ups, and without them by what is shown already."""
    from_s = max(0.0, wanted.from_s or 0.0)
    to_s = math.inf if wanted.to_s is None else wanted.to_s
    shown = ShownTime(view.areas, view.lanes)
    if from_s >= to_s:
        return ShownTime(Areas(edges=(), pools={}), ())
    try:
        ledger = read_ledger(folder)
        lines = read_rollups(folder / FOLDER, from_s, to_s, MOST_BUCKETS, until=ledger.number)
    except RunFolderError:  # the view says so
        return shown
    if not lines:
        return shown
    pools, shares = _pools(ledger), TimeShares()
    for line in lines:
        start_s, end_s = line.start_s - from_s, line.end_s - from_s
        for worker, times in line.times.items():
            node = node_of(worker)
            shares.times(worker, node, pools.get(node, "spot"), times, start_s, end_s)
    return _moved(shares, from_s)


def _pools(ledger: Ledger) -> dict[str, str]:
    return {bill.node: bill.pool for bill in ledger.bills}


def _moved(shares: TimeShares, by_s: float) -> ShownTime:
    areas = shares.areas()
    edges = tuple(round(edge + by_s, 3) for edge in areas.edges)
    lanes = tuple(
        msgspec.structs.replace(
            lane, parts=tuple((state, start + by_s, end + by_s) for state, start, end in lane.parts)
        )
        for lane in shares.lanes()
    )
    return ShownTime(msgspec.structs.replace(areas, edges=edges), lanes)
