"""What it costs to reach the target, in GPU-hours and dollars.

Pure. Every GPU of a job is paid from its start to its target, whether it works or waits. A job
whose trainers survive their loss may have all of its GPUs on spot: `dollars_all_spot` is what that
costs before anything is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean
from typing import Any

from benchmarks.exploration.cases import Case
from benchmarks.exploration.comparison import Arrivals
from benchmarks.exploration.rivals import RIVALS
from benchmarks.time_to_target import LEVELS

RESERVED_DOLLARS = 2.0
"""The price of a GPU-hour; an assumption, of which ratios do not depend."""
SPOT_DISCOUNT = 0.7


def dollars(
    times: Arrivals, profile: str, tasks: Iterable[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """By task and rival: GPU-hours of each pool and dollars to the target, geometric means over
    seeds; at least so much where not every run arrived."""
    found: dict[str, Any] = {}
    for task in tasks:
        rows = {}
        for rival in RIVALS:
            cases = [Case(task=task, rival=rival, seed=seed, profile=profile) for seed in seeds]
            at_target = [times[case][LEVELS[-1]] for case in cases if case in times]
            if at_target:
                hours = geometric_mean([one.seconds for one in at_target]) / 3600
                rows[rival] = _row(cases[0], hours) | {
                    "seeds": len(at_target),
                    "never_arrived": sum(not one.arrived for one in at_target),
                }
        found[f"dollars_to_target[{task}, {profile}]"] = rows
    return found


def _row(case: Case, hours: float) -> dict[str, float]:
    pools = case.job().pools
    reserved = hours * pools.reserved.nodes * pools.reserved.workers
    spot = hours * pools.spot.nodes * pools.spot.workers
    return {
        "reserved_gpu_hours": round(reserved, 2),
        "spot_gpu_hours": round(spot, 2),
        "dollars": round(RESERVED_DOLLARS * (reserved + spot * (1 - SPOT_DISCOUNT)), 2),
        "dollars_all_spot": round(RESERVED_DOLLARS * (reserved + spot) * (1 - SPOT_DISCOUNT), 2),
    }
