"""What jobs get that share a fleet: `python -m benchmarks.jobs --json [--quick]`.

On virtual time, over 8 hours in which every spot node is lost once in two hours and comes back
after five minutes, and a model takes 60 s to load. Three jobs share 4 nodes by weights 1:1:1, 8 by
1:2:3, and 32 by 1:1:2; medians and the worst over seeds.

`share_error` is by how much of its share a job had too little or too much, `moves_per_hour` counts
nodes that were taken from one job for another, and `lost_to_moves` is the part of the nodes' time
in which they gave work back or loaded a model because of that. `share_error_late` is the same error
where one job had all nodes for an hour before the others began.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from typing import NamedTuple

from benchmarks.report import Figure, Report
from spotlight.policies.fleet.allocation import Allocation, Borrower
from spotlight.timings import SharingTimings
from spotlight_simulation.lent_fleet import LentFleet, SimulatedNode

CASES = (((1, 1, 1), 4), ((1, 2, 3), 8), ((1, 1, 2), 32))
"""The weights, and how many nodes there are."""
HOURS = 8
LOAD_S = 60.0
LOSSES_PER_HOUR = 0.5


class Outcome(NamedTuple):
    """What came of one fleet."""

    share_error: float
    moves_per_hour: float
    lost_to_moves: float


def main() -> None:
    """Measure and print."""
    report = Report("jobs", __doc__, minutes=2)
    report.begin()
    report.add(_shares(report.times(20, quick=2)))
    report.finish()


def _shares(seeds: int) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    worst: defaultdict[str, float] = defaultdict(float)
    for weights, nodes in CASES:
        name = f"{'_'.join(map(str, weights))}_on_{nodes}"
        outcomes = [_share(weights, nodes, seed, alone_s=0.0) for seed in range(seeds)]
        late = [_share(weights, nodes, seed, alone_s=3600.0) for seed in range(seeds)]
        for field in Outcome._fields:
            values = [getattr(outcome, field) for outcome in outcomes]
            figures[f"{field}_{name}"] = round(statistics.median(values), 4)
            worst[field] = max(worst[field], *values)
        worst["share_error_late"] = max(
            worst["share_error_late"], *(outcome.share_error for outcome in late)
        )
    return figures | {field: round(value, 4) for field, value in worst.items()}


def _share(weights: tuple[int, ...], nodes: int, seed: int, alone_s: float) -> Outcome:
    """Hours of a fleet that the first job has alone for a while before, which does not count."""
    fleet = LentFleet(
        Allocation(SharingTimings()),
        [SimulatedNode(f"spot-{number}", "spot") for number in range(nodes)],
        random.Random(seed),
        losses_per_hour=LOSSES_PER_HOUR,
        load_s=LOAD_S,
    )
    first, *others = [
        Borrower(f"job-{order}", weight, 0, order, 0, frozenset(), LOAD_S)
        for order, weight in enumerate(weights)
    ]
    fleet.begin([first])
    fleet.run(alone_s)
    fleet.had.clear()
    fleet.moves, fleet.lost_to_moves = 0, 0.0
    fleet.begin(others)
    fleet.run(3600.0 * HOURS)
    total = sum(fleet.had.values())
    shares = {f"job-{order}": weight / sum(weights) for order, weight in enumerate(weights)}
    return Outcome(
        max(abs(fleet.had[name] / total / share - 1) for name, share in shares.items()),
        fleet.moves / HOURS,
        fleet.lost_to_moves / total,
    )


if __name__ == "__main__":
    main()
