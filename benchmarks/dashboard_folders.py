"""Run folders for the page to show, and what their reports weigh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from benchmarks.large_run import write_large_run
from benchmarks.large_run_world import SIZES, Size
from spotlight.report.rendering import write_report

_QUICK: dict[str, dict[str, Any]] = {
    "small": {"hours": 0.2, "iterations": 12},
    "long": {"hours": 0.5, "iterations": 20, "side": 96},
    "wide": {"hours": 0.4, "iterations": 60, "side": 32, "spot_nodes": 12},
}
"""What is smaller when there is little time."""


def written_run(folder: Path, size: str, *, quick: bool, finished: bool = True) -> Path:
    """A folder with a run of that size; one that is there is taken."""
    if not folder.exists():
        wanted: Size = SIZES[size]
        if quick:
            wanted = msgspec.structs.replace(wanted, **_QUICK[size])
        write_large_run(folder, wanted, finished=finished)
    return folder


def report_sizes(folder: Path, *, quick: bool) -> dict[str, float]:
    """What `report.html` of each size of a run weighs, in MB, by the number of its workers."""
    sizes = {}
    for size in ("small", "long", "wide"):
        run = written_run(folder / size, size, quick=quick)
        nbytes = write_report(run).stat().st_size
        sizes[f"report_mb[{SIZES[size].all_workers}]"] = round(nbytes / 1e6, 3)
    return sizes
