"""Seeded faults against real processes with a real job: `python -m benchmarks.live_chaos --json`.

Nodes, workers and the coordinator are killed, stopped, given notice and, where the machine has
network namespaces, cut off. Every run must end by itself with the checkpoint, export and figures of
an undisturbed one, bit by bit, and leave nothing behind. One more case: all of four spot nodes are
killed, and are back within the same iteration; `--quick` is that case alone, with two nodes.
"""

from __future__ import annotations

from collections import Counter

from benchmarks.live.chaos import QUICK_POOL, LiveCase, run_live
from benchmarks.report import Report


def main() -> None:
    """Print how many seeds ran, what struck, and what was violated."""
    report = Report("live_chaos", __doc__, minutes=8)
    report.options.add_argument("--seeds", type=int, default=5, help="how many, from 0")
    given = report.begin()
    pool = LiveCase(None, QUICK_POOL) if given.quick else LiveCase(None)
    cases = [pool, *map(LiveCase, range(report.times(given.seeds, quick=0)))]
    outcomes = list(run_live(cases))
    struck: Counter[str] = Counter()
    for outcome in outcomes:
        struck.update(outcome.effective)
    report.add(
        {
            "seeds": len(cases) - 1,
            "seconds": sum(outcome.seconds for outcome in outcomes),
            "violations": sum(len(outcome.violations) for outcome in outcomes),
            "violated": [f"{o.case}: {what}" for o in outcomes for what in o.violations],
            "faults": dict(sorted(struck.items())),
            "partitions": outcomes[0].partitions,
            "pool_lost_and_back_within_an_iteration": outcomes[0].back_within_iteration,
            "pool_loss_bit_equal": not outcomes[0].violations,
        }
    )
    report.finish()


if __name__ == "__main__":
    main()
