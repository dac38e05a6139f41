"""What exploration is worth: `python -m benchmarks.exploration --json`, in parts (`--part`):

- `testbed`: time to target of Spotlight and of its rivals (`rivals`), on four reserved and eight
  spot GPUs, in virtual time with real numerics (`benchmarks.virtual_testbed`), for every task and
  every profile; also the cost in dollars.
- `ladder`: all rivals, also those that no cluster runs here, on every profile with 8 and 16 spot
  GPUs, timed from runs that were made once (`ladder`, `clocks`).
- `noise`: the same runs with the samples in another order.
- `pools`: with spot pools of 4 and 16 GPUs.
- `tuning`: the trials of settings on seed 0, which no other part uses.
- `staleness`: does the ranking of seeds survive updates, on tasks whose prompts are alike?
- `half-way`: do predicted clean images, or previews of fewer steps, foretell rewards?
- `two-core`: time to target by the wall clock, as real processes, with exploration and without.
- `planner`: `benchmarks.exploration_planner`.

Every run is kept as a small file in `--runs`, with all that decides what comes of it, and is not
made again, on whatever machine. `--minutes` ends the making of runs of the test-bed after that
time; figures are then of what there is, and those of which nothing is there are null (`missing`
lists the runs). The whole takes a night on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.exploration import cases, comparison, ladder
from benchmarks.exploration.cases import PROFILES, SIMULATED, Case
from benchmarks.exploration.costs import dollars
from benchmarks.exploration.half_way import half_way
from benchmarks.exploration.kept_runs import RUNS
from benchmarks.exploration.plots import draw
from benchmarks.exploration.processes import make_units
from benchmarks.exploration.rivals import (
    LADDER_TASKS,
    MIXED_TASKS,
    OURS,
    REFERENCE,
    RIVALS,
    TASKS,
)
from benchmarks.exploration.simulated_clocks import simulated_clocks
from benchmarks.exploration.staleness import staleness
from benchmarks.exploration.tables import rendered
from benchmarks.exploration.testbed_runs import VirtualRuns
from benchmarks.exploration.two_core import two_core
from benchmarks.report import Report, at_least_one
from spotlight.errors import JobError, UserError
from spotlight_simulation.profile import load_profile

ON_TESTBED = ("testbed", "ladder", "noise", "pools", "tuning")
PARTS = (*ON_TESTBED, "staleness", "half-way", "two-core", "planner")
_QUICK_PARTS = ("testbed", "noise", "staleness", "half-way", "two-core", "planner")
_QUICK_RIVALS = (REFERENCE, OURS, "data-parallel")
"""One of each kind: with spot rollouts, with exploration, and with as many ranks as GPUs."""


def main() -> None:
    """Make what is missing, draw and print."""
    report = Report("exploration", __doc__, minutes=5, proviso=" where all runs are kept")
    made = report.options
    made.add_argument("--part", choices=PARTS, action="append", help="default: all")
    made.add_argument(
        "--task", choices=(*TASKS, *LADDER_TASKS), action="append", help="default: all; quick: ocr"
    )
    made.add_argument(
        "--profile", choices=PROFILES, action="append", help="default: all; quick: one"
    )
    made.add_argument(
        "--seeds", type=at_least_one, default=8, help=f"so many, from {cases.FIRST_SEED} on"
    )
    made.add_argument("--runs", type=Path, default=RUNS, help="where runs are kept")
    made.add_argument("--plots", type=Path, help="where plots are drawn")
    made.add_argument(
        "--tables",
        type=Path,
        action="append",
        default=[],
        help="a Markdown file whose tables of the test-bed are made anew",
    )
    options = report.begin()
    if options.quick and options.tables:
        made.error("--tables: not with --quick, whose figures say nothing")
    for file in options.tables:
        if not file.is_file():
            made.error(f"--tables: {file} is not a file")
    try:
        options.runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        made.error(f"--runs: {options.runs}: {error.strerror}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and nothing of it stays behind
    with tempfile.TemporaryDirectory() as temporary:
        if options.quick:
            options.runs = Path(temporary)
        try:
            figures = _measure(options)
            for file in options.tables:
                file.write_text(rendered(file.read_text(), figures))
        except UserError as error:
            sys.exit(f"exploration: {error}")
        report.add(figures)
        report.finish()


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    tasks = options.task or (TASKS[:1] if options.quick else (*TASKS, *LADDER_TASKS))
    seeds = range(cases.FIRST_SEED, cases.FIRST_SEED + (1 if options.quick else options.seeds))
    chosen = options.part or (_QUICK_PARTS if options.quick else PARTS)
    figures: dict[str, Any] = {"quick": options.quick}
    if any(part in ON_TESTBED for part in chosen):
        figures |= _testbed(options, chosen, tasks, seeds)
    alike = [task for task in tasks if task in TASKS and task not in MIXED_TASKS]
    others: dict[str, Callable[[], dict[str, Any]]] = {
        "staleness": lambda: staleness(options.runs, alike, seeds, quick=options.quick),
        "half-way": lambda: half_way(quick=options.quick),
        "two-core": lambda: two_core(options.runs, seeds, quick=options.quick),
        "planner": lambda: _planner(options.quick),
    }
    for part, measured in others.items():
        if part in chosen:
            figures |= measured()
    return figures


def _testbed(
    options: argparse.Namespace, parts: Sequence[str], chosen: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    tasks = [task for task in chosen if task in TASKS]
    profiles = options.profile or SIMULATED[: 1 if options.quick else None]
    rivals = _QUICK_RIVALS if options.quick else tuple(RIVALS)
    wanted = list(dict.fromkeys(_wanted(parts, profiles, tasks, seeds, rivals)))
    if "ladder" in parts:
        wanted = list(dict.fromkeys([*wanted, *ladder.wanted(chosen, seeds)]))
    ends_by = time.monotonic() + 60 * (options.minutes or math.inf)
    reasons = make_units(
        cases.units(wanted),
        options.runs,
        quick=options.quick,
        ends_by=ends_by,
    )
    found = VirtualRuns(options.runs, quick=options.quick)
    runs = {case: run for case in wanted if (run := _read(found, case)) is not None}
    figures: dict[str, Any] = {
        "runs": len(runs),
        "missing": [case.name for case in wanted if case not in runs],
        "could_not_be_made": reasons,
    }
    times = comparison.arrivals(runs)
    if "testbed" in parts:
        figures |= comparison.compare(times, profiles, tasks, seeds)
        figures |= comparison.spot_time(runs, tasks, seeds)
        for profile in profiles:
            figures |= dollars(times, profile, tasks, seeds)
        if options.plots:
            draw(options.plots, runs, profiles, tasks, seeds)
    if "ladder" in parts:
        named = {name: load_profile(PROFILES[name]) for name in options.profile or PROFILES}
        clocks = simulated_clocks(ladder.splits(named, chosen), options.runs, ends_by=ends_by)
        figures |= ladder.ladder(runs, clocks, named, chosen, seeds)
    if "noise" in parts:
        figures |= comparison.order_noise(times, tasks, seeds)
    if "pools" in parts:
        figures |= comparison.by_spot_pool(times, tasks, seeds)
    if "tuning" in parts:
        figures |= comparison.tuning(times, tasks)
    return figures


def _wanted(
    parts: Sequence[str],
    profiles: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int],
    rivals: Sequence[str],
) -> Iterator[Case]:
    """In the order in which they are made."""
    for profile in profiles if "testbed" in parts else ():
        yield from cases.main_cases(profile, tasks, seeds, rivals)
    if "noise" in parts:
        yield from cases.noise_cases(tasks, seeds)
    if "pools" in parts:
        yield from cases.pool_cases(tasks, seeds)
    if "tuning" in parts:
        yield from cases.trial_cases(tasks)


def _read(runs: VirtualRuns, case: Case) -> dict[str, Any] | None:
    try:
        return runs.read(case)
    except JobError:
        return None  # `could_not_be_made` says why


def _planner(quick: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.exploration_planner", "--json"]
    command += ["--quick"] * quick
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["figures"]
    return figures


if __name__ == "__main__":
    main()
