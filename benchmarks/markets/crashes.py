"""Small jobs on stretches of real markets, in which coordinators and nodes are killed as well."""

from __future__ import annotations

from typing import Any

from benchmarks.report import Report
from spotlight_simulation.market.crashed_markets import run_markets

SCHEDULES, QUICK_SCHEDULES = 1000, 4


def crashes(report: Report) -> dict[str, Any]:
    """How many schedules were simulated, in how many of them something happened that must not, and
    what was taken and killed in all of them."""
    outcomes = list(run_markets(range(report.times(SCHEDULES, quick=QUICK_SCHEDULES))))
    amiss = [outcome for outcome in outcomes if outcome.violations]
    for outcome in amiss:
        report.note(f"crashed market {outcome.seed}: {outcome.violations[0]}")
    return {
        "crashed_schedules": len(outcomes),
        "crashed_violations": len(amiss),
        "nodes_taken": sum(outcome.taken for outcome in outcomes),
        "coordinator_kills": sum(outcome.coordinator_kills for outcome in outcomes),
        "node_kills": sum(outcome.node_kills for outcome in outcomes),
    }
