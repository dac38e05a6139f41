"""What the plots show of the runs on the test-bed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks.exploration.cases import SOL_RL_SPLIT, Case, training_share
from benchmarks.exploration.charts import Interval, Line, curves, intervals
from benchmarks.exploration.comparison import Arrivals, Runs, arrivals, headlines
from benchmarks.exploration.ratios import student_margin
from benchmarks.exploration.rivals import OURS, REFERENCE, RIVALS
from benchmarks.exploration.testbed_runs import curve_of
from benchmarks.time_to_target import Curve, milestones, score_at, smoothed

_POINTS = 80
_HOUR_S = 3600.0
_COLOURS = {
    OURS: "#c8502f",
    REFERENCE: "#1c1e23",
    "reserved": "#9a9da3",
    "data-parallel": "#2f8f6b",
    "published": "#b08b1e",
    "pipelined": "#3a6fd0",
    "uniform": "#e39a86",
    "regenerate": "#8a5cc2",
    "inline": "#c77fb5",
}
_TASK_COLOURS = ("#c8502f", "#3a6fd0", "#2f8f6b", "#8a5cc2")


def draw(
    folder: Path, runs: Runs, profiles: Iterable[str], tasks: Sequence[str], seeds: Sequence[int]
) -> None:
    """Write a file for each task and profile with scores over time, and one for each profile with
    speed-ups; none where there are no runs."""
    folder.mkdir(parents=True, exist_ok=True)
    times = arrivals(runs)
    for profile in profiles:
        where = "" if profile == SOL_RL_SPLIT else f"-{profile}"
        for task in tasks:
            drawn = score_over_time(runs, profile, task, seeds)
            if drawn:
                (folder / f"time-to-target-{task}{where}.svg").write_text(drawn)
        drawn = speedups(times, profile, tasks, seeds)
        if drawn:
            (folder / f"speedups{where}.svg").write_text(drawn)


def score_over_time(runs: Runs, profile: str, task: str, seeds: Sequence[int]) -> str | None:
    """Means over seeds; a run that has ended keeps its last score."""
    references = [Case(task=task, rival=REFERENCE, seed=seed, profile=profile) for seed in seeds]
    ways = [milestones(curve_of(runs[case])) for case in references if case in runs]
    targets = [max(way.values()) for way in ways if way]
    lines = []
    for rival, colour in _COLOURS.items():
        cases = [msgspec.structs.replace(case, rival=rival) for case in references]
        found = [smoothed(curve_of(runs[case])) for case in cases if case in runs]
        found = [[(at / _HOUR_S, score) for at, score in curve] for curve in found if curve]
        if found:
            lines.append(_line(RIVALS[rival], colour, found))
    if not lines or not targets:
        return None
    return curves(
        lines,
        title=f"Score on held-out prompts over time: {task} ({_split(profile)})",
        note=f"Means of up to {len(targets)} seeds, 90 % intervals; runs end at the target",
        x="hours on the test-bed of twelve GPUs (virtual time)",
        y="score",
        target=fmean(targets),
    )


def speedups(
    times: Arrivals, profile: str, tasks: Sequence[str], seeds: Sequence[int]
) -> str | None:
    """A row for each rival and task."""
    groups = []
    found = headlines(times, profile, tasks, seeds)
    for rival in RIVALS:
        estimates = found.get(f"speedup_vs_{rival.replace('-', '_')}", {})
        rows = [
            Interval(task, colour, one.value, one.low, one.high)
            for task, colour in zip(tasks, _TASK_COLOURS, strict=False)
            if (one := estimates.get(task)) is not None
        ]
        if rows:
            groups.append((RIVALS[rival], rows))
    if not groups:
        return None
    return intervals(
        groups,
        title=f"How many times as fast Spotlight reaches the target ({_split(profile)})",
        note=f"Geometric means of up to {len(seeds)} seeds, with 90 % intervals",
        x="times as fast as",
    )


def _split(profile: str) -> str:
    return f"training is {training_share(profile)} of an iteration"


def _line(name: str, colour: str, found: Sequence[Curve]) -> Line:
    """The mean of curves on a common grid of times, and its interval where there is one."""
    begin = max(curve[0][0] for curve in found)
    end = max(curve[-1][0] for curve in found)
    grid = [begin + (end - begin) * step / (_POINTS - 1) for step in range(_POINTS)]
    columns = [[score_at(time, curve) for curve in found] for time in grid]
    points = [(time, fmean(column)) for time, column in zip(grid, columns, strict=True)]
    margins = [student_margin([column]) for column in columns]
    band = [
        (score - margin, score + margin)
        for (_, score), margin in zip(points, margins, strict=True)
        if margin is not None
    ]
    return Line(name, colour, points, band)
