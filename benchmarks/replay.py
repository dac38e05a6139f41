"""Spotlight and its rivals on real spot markets: `python -m benchmarks.replay --json`.

Every run goes on a schedule of nodes that comes from a public trace, by the batch-level model
(`spotlight_simulation.market.batch_model`): hours and dollars to the same score. What each system
trains on, and how fast it goes, is from runs that are kept (`benchmarks.markets.entrants`). Figures
are medians over the markets whose nodes were held until they were taken, at the paper's discount.

The model is held against the real coordinator and nodes on stretches of the same markets
(`benchmarks.markets.depths`). Without the folder of public traces (`--shared`), only those that
ship with Spotlight are used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.exploration.kept_runs import RUNS
from benchmarks.exploration.tables import rendered_with
from benchmarks.markets.checks import checks
from benchmarks.markets.comparison import Field, Replay
from benchmarks.markets.crashes import crashes
from benchmarks.markets.depths import SCHEDULES, STRETCH_S, depths, speeds
from benchmarks.markets.entrants import POOLS, TASKS, Kept, entrants
from benchmarks.markets.one_market import NODES, one_market
from benchmarks.markets.places import SHARED, places
from benchmarks.markets.splits import OtherSplits
from benchmarks.markets.tables import TABLES
from benchmarks.report import Report
from spotlight.errors import UserError


def main() -> None:
    """Run everybody on all markets, and print."""
    report = Report("replay", __doc__, minutes=30)
    made = report.options
    made.add_argument("--shared", type=Path, default=SHARED, help="a folder of public traces")
    made.add_argument(
        "--tables",
        type=Path,
        action="append",
        default=[],
        help="a Markdown file whose tables are made anew",
    )
    options = report.begin()
    tasks, pools = (TASKS[:1], POOLS[:1]) if options.quick else (TASKS, POOLS)
    if options.quick and options.tables:
        made.error("--tables: not with --quick, whose figures say nothing")
    for file in options.tables:  # known before half an hour of work, not after it
        if not file.is_file():
            made.error(f"--tables: {file} is no file; give a Markdown file with tables")
    try:
        figures = _compare(report, options.shared, tasks, pools, quick=options.quick)
        if not options.tables:  # none of them has these, which take most of the time
            figures |= depths(report.times(SCHEDULES, 1), 600.0 if options.quick else STRETCH_S)
            figures |= speeds(400.0 if options.quick else 900.0)
            figures |= crashes(report)
        if not options.quick:
            figures["checks"] = checks(RUNS)
        for file in options.tables:
            file.write_text(rendered_with(TABLES, file.read_text(), figures))
    except (OSError, UserError) as error:
        sys.exit(f"replay: {error}")
    report.add(figures)
    report.finish()


def _compare(
    report: Report, shared: Path, tasks: Sequence[str], pools: Sequence[int], *, quick: bool
) -> dict[str, Any]:
    fields: dict[tuple[str, int], Field] = {}
    figures: dict[str, Any] = {}
    for task in tasks:
        kept = Kept(RUNS, task)
        fields |= {(task, nodes): Field(entrants(kept, nodes)) for nodes in pools}
        figures[f"paces[{task}]"] = {
            nodes: {"seeds": one.seeds, **msgspec.to_builtins(one.pace)}
            for nodes, one in kept.measured().items()
        }
    figures["one_market"] = one_market(RUNS, {task: fields[task, NODES] for task in tasks})
    replay = Replay(fields)
    splits = OtherSplits(RUNS, tasks)
    for place in islice(places(shared), 2 if quick else None):
        report.note(place.name)
        replay.visit(place)
        splits.visit(place)
    figures["splits"] = splits.figures()
    if not shared.is_dir():
        figures["left_out"] = f"markets whose traces are not shipped: {shared} is not there"
    return figures | replay.figures()


if __name__ == "__main__":
    main()
