"""Spotlight and its rivals on real spot markets: `python -m benchmarks.replay --json`.

Every run goes on a schedule of nodes that comes from a public trace, by the batch-level model
(`spotlight_simulation.market.batch_model`): hours and dollars to the same score. What each system
trains on, and how fast it goes, is from runs that are kept (`benchmarks.markets.entrants`). Figures
are medians over the markets whose nodes were held until they were taken, at the paper's discount.

Without the folder of public traces (`--shared`), only those that ship with Spotlight are used.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.exploration.kept_runs import RUNS
from benchmarks.markets.comparison import Field, Replay
from benchmarks.markets.entrants import POOLS, TASKS, Kept, entrants
from benchmarks.markets.places import SHARED, places
from benchmarks.report import Report
from spotlight.errors import UserError


def main() -> None:
    """Run everybody on all markets, and print."""
    report = Report("replay", __doc__, minutes=5)
    made = report.options
    made.add_argument("--shared", type=Path, default=SHARED, help="a folder of public traces")
    options = report.begin()
    tasks, pools = (TASKS[:1], POOLS[:1]) if options.quick else (TASKS, POOLS)
    try:
        fields: dict[tuple[str, int], Field] = {}
        for task in tasks:
            kept = Kept(RUNS, task)
            fields |= {(task, nodes): Field(entrants(kept, nodes)) for nodes in pools}
        replay = Replay(fields)
        markets = list(places(options.shared))[: 2 if options.quick else None]
        for place in markets:
            report.note(place.name)
            replay.visit(place)
    except UserError as error:
        sys.exit(f"replay: {error}")
    report.add(replay.figures())
    report.finish()


if __name__ == "__main__":
    main()
