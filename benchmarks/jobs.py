"""What jobs get that share a fleet: `python -m benchmarks.jobs --json [--quick]`.

All is on virtual time. Three jobs of two users share 4 spot nodes by weights 1:1:1, and 8 by 1:2:3,
for 8 hours in which every spot node is lost twice in four hours and is away for five minutes; a
model takes 60 s to load. `share_error` is by how much of its share a job had too little or too much
at most, `moves_per_hour` counts nodes that were taken from one job for another, and `lost_to_moves`
is the part of the nodes' time in which they gave their work back or loaded a model for that.

These three are of the real coordinator, nodes and workers. Those that end in `_policy` are the
worst of many seeds with the policy alone, where `share_error_late_policy` is of fleets that one job
had for an hour before the others began.

`bit_equal_fraction` is the part of the iterations of three jobs with fixed budgets, which lost and
exchanged nodes meanwhile, that left the weights that they leave in a job that is alone and
undisturbed; `requests_lost` are their samples that were not trained on. `jobs_lost` counts jobs
that were in the queue and are not there, are there twice, or did not end as they should, after the
coordinator was killed at a place of the queue's writes, of which there are `queue_kills`.
`violations` are the seeds of the chaos with several jobs, `seeds` of them, whose history breaks an
invariant.
"""

from __future__ import annotations

import random
from collections import defaultdict

from benchmarks.jobs_cluster import (
    AWAY_S,
    LOAD_S,
    LOSSES_PER_HOUR,
    Done,
    Shares,
    done_by,
    hours_of,
)
from benchmarks.report import Figure, Report
from spotlight.policies.fleet.allocation import Allocation, Borrower
from spotlight.timings import SharingTimings
from spotlight_simulation.chaos import run_seeds
from spotlight_simulation.lent_fleet import LentFleet, SimulatedNode
from spotlight_simulation.queue_kills import lives

CASES = (((1, 1, 1), 4), ((1, 2, 3), 8))
"""The weights, and how many nodes there are."""
HOURS = 8.0
ALONE_S = 3600.0
SEEDS = 2000
QUEUE_KILLS_APART = 8
"""The coordinator is killed at every place of the queue, with `--quick` at one of so many."""


def main() -> None:
    """Measure and print."""
    report = Report("jobs", __doc__, minutes=25)
    options = report.begin()
    report.add(_policy(report.times(20, quick=1)))
    report.add(_hours(0.5 if options.quick else HOURS))
    report.add(_done(report.times(20, quick=1)))
    report.add(_queue(QUEUE_KILLS_APART if options.quick else 1))
    report.add(_chaos(report, report.times(SEEDS, quick=4)))
    report.finish()


def _policy(seeds: int) -> dict[str, Figure]:
    """The worst of all cases and seeds."""
    worst: defaultdict[str, float] = defaultdict(float)
    for weights, nodes in CASES:
        for seed in range(seeds):
            shares = _share(weights, nodes, seed, alone_s=0.0)
            late = _share(weights, nodes, seed, alone_s=ALONE_S)
            found = {**shares._asdict(), "share_error_late": late.share_error}
            for name, value in found.items():
                worst[name] = max(worst[name], value)
    return {f"{name}_policy": round(value, 4) for name, value in worst.items()}


def _share(weights: tuple[int, ...], nodes: int, seed: int, alone_s: float) -> Shares:
    """Hours of a fleet that the first job has alone for a while before, which does not count."""
    fleet = LentFleet(
        Allocation(SharingTimings()),
        [SimulatedNode(f"spot-{number}", "spot") for number in range(nodes)],
        random.Random(seed),
        losses_per_hour=LOSSES_PER_HOUR,
        away_s=AWAY_S,
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
    return Shares(
        max(abs(fleet.had[name] / total / share - 1) for name, share in shares.items()),
        fleet.moves / HOURS,
        fleet.lost_to_moves / total,
    )


def _hours(hours: float) -> dict[str, Figure]:
    """The worst of the cases."""
    each = [hours_of(weights, nodes, hours, seed=0) for weights, nodes in CASES]
    worst = Shares(*map(max, zip(*each, strict=True)))
    return {name: round(value, 4) for name, value in worst._asdict().items()} | {"hours": hours}


def _done(seeds: int) -> dict[str, Figure]:
    total = Done(*map(sum, zip(*map(done_by, range(seeds)), strict=True)))
    return {
        "iterations": total.iterations,
        "bit_equal_fraction": round(total.equal / total.iterations, 4),
        "requests_lost": total.requests_lost,
    }


def _queue(apart: int) -> dict[str, Figure]:
    killed = list(lives(apart))
    return {
        "queue_kills": len(killed),
        "jobs_lost": sum(len(life.lost) + len(life.twice) for life in killed),
    }


def _chaos(report: Report, seeds: int) -> dict[str, Figure]:
    """Of those seeds of the chaos that have several jobs."""
    outcomes = list(run_seeds(range(4, 8 * seeds, 8)))
    bad = [outcome.seed for outcome in outcomes if outcome.violations]
    for seed in bad:
        report.note(f"replay with: spotlight chaos --seed {seed}")
    return {"seeds": len(outcomes), "violations": len(bad)}


if __name__ == "__main__":
    main()
