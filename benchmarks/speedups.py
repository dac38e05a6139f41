"""How many times as fast Spotlight reaches a score as other methods do.

Pure. A ratio is 0 where Spotlight never arrives, and None where no rival does; of several seeds it
is the lower median, in which None counts as infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median_low
from typing import Any

from benchmarks import time_to_target
from benchmarks.exploration_jobs import PLAIN

Run = dict[str, Any]
"""With the curve of its `validation`."""
Key = tuple[str, str, int]
"""Task, method, seed."""
Times = dict[str, float | None]
"""Seconds to a target by method; None where it is never reached."""


def compare(
    part: str,
    runs: dict[Key, Run],
    tasks: Iterable[str],
    seeds: Iterable[int],
    rivals: dict[str, tuple[str, ...]],
) -> dict[str, Any]:
    """For each name a speed-up over the fastest of these methods."""
    figures: dict[str, Any] = {}
    for task in tasks:
        ratios: dict[str, list[float | None]] = {name: [] for name in rivals}
        on_the_way: dict[str, list[float | None]] = {}
        told = []
        for seed in seeds:
            curves = {
                method: curve_of(run)
                for (at, method, number), run in runs.items()
                if (at, number) == (task, seed)
            }
            best = best_plain(curves)
            target = time_to_target.final_score(best)
            times = _times(target, curves)
            told.append({"seed": seed, "target": round(target, 4), "seconds": times})
            for name, methods in rivals.items():
                ratios[name].append(ratio(times, methods))
            for share, goal in time_to_target.milestones(best).items():
                on_the_way.setdefault(share, []).append(ratio(_times(goal, curves), PLAIN))
        for name, each in ratios.items():
            figures[f"{name}[{task}]"] = median_ratio(each)
            figures[f"{name}_per_seed[{task}]"] = each
        figures[f"speedup_on_the_way_{part}[{task}]"] = {
            share: median_ratio(each) for share, each in on_the_way.items()
        }
        figures[f"time_to_target_{part}[{task}]"] = told
    return figures


def best_plain(curves: Mapping[str, time_to_target.Curve]) -> time_to_target.Curve:
    """Whose end is the target of all: by the wall clock the two ends may differ."""
    return max((curves[method] for method in PLAIN), key=time_to_target.final_score)


def _times(target: float, curves: Mapping[str, time_to_target.Curve]) -> Times:
    return {method: time_to_target.time_to(target, curve) for method, curve in curves.items()}


def curve_of(run: Run) -> list[tuple[float, float]]:
    """(seconds, score), in the order of time."""
    return [(point["time_s"], point["score"]) for point in run["validation"]]


def ratio(times: Times, rivals: Iterable[str]) -> float | None:
    """How many times as long the fastest of these methods takes; 0 if Spotlight never arrives,
    None if none of them does."""
    own = times["spotlight"]
    if own is None:
        return 0.0
    reached = [seconds for seconds in map(times.get, rivals) if seconds is not None]
    return round(min(reached) / own, 3) if reached else None


def median_ratio(values: list[float | None]) -> float | None:
    """The lower one of two; whoever never arrives is slower than all others."""
    found = median_low([math.inf if value is None else value for value in values])
    return None if found == math.inf else found
