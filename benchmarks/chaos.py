"""What survives: many simulated jobs, and sessions of programs with loops of their own, each
disturbed by faults that follow from its seed.

    python -m benchmarks.chaos --json [--quick]

The real coordinator, nodes and group leaders run on virtual time; every history is checked against
the invariants of `spotlight_simulation.invariants`, or `session_invariants`. A fault counts only
where it changed something.

Figures: `sessions` are the seeds that drove one, `violations` those whose history breaks an
invariant, `fewest_effective_faults` is the count of the rarest kind of fault, and
`rarest_situation` the number of seeds in which the rarest situation came about of those that
promises are about.
`virtual_per_cpu_second_N` is how fast an undisturbed job goes by on N members, in virtual seconds
per second of processor time.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.report import Figure, Report
from spotlight_simulation.chaos import (
    run_seeds,
    scratch_folder,
    silence,
    simulate,
    total_effects,
    total_situations,
)
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import Scenario, chaos_job
from spotlight_simulation.processes import NodeSpec

SEEDS = 2000
QUICK_SEEDS = 16


def virtual_per_cpu_second(members: int) -> float:
    """Of a job whose rollouts keep every member busy, one batch each."""
    spot = [NodeSpec(f"spot-{number}", "spot", 8) for number in range(members // 8)]
    with scratch_folder() as folder, silence():
        job = chaos_job(folder, degree=1, group_size=2 * members)
        made = Scenario(job, (NodeSpec("reserved", "reserved", 1), *spot), (), False)
        began = time.process_time()
        with asyncio.Runner(loop_factory=FreezableLoop) as runner:
            run = runner.run(simulate(0, made, folder))
        used_s = time.process_time() - began
    assert [outcome for outcome, _ in run.outcomes] == ["finished"], run.outcomes
    return run.history.happenings[-1].time_s / used_s


def main() -> None:
    """Run all seeds and print the figures."""
    report = Report("chaos", __doc__, minutes=12)
    options = report.begin()
    count = report.times(SEEDS, quick=QUICK_SEEDS)
    began = time.monotonic()
    outcomes = list(run_seeds(range(count)))
    seconds = time.monotonic() - began
    effects = total_effects(outcomes)
    bad = [outcome.seed for outcome in outcomes if outcome.violations]
    figures: dict[str, Figure] = {
        "seeds": count,
        "sessions": sum(outcome.drove_session for outcome in outcomes),
        "seconds": round(seconds, 1),
        "violations": len(bad),
        "fewest_effective_faults": min(effects.values()),
        "rarest_situation": min(total_situations(outcomes).values()),
        "virtual_hours": round(sum(outcome.virtual_s for outcome in outcomes) / 3600, 1),
    }
    for members in (16,) if options.quick else (96, 1000):
        figures[f"virtual_per_cpu_second_{members}"] = round(virtual_per_cpu_second(members), 2)
    figures |= {f"effective_{kind}": effect for kind, effect in effects.items()}
    for seed in bad:
        report.note(f"replay with: spotlight chaos --seed {seed}")
    report.add(figures)
    report.finish()


if __name__ == "__main__":
    main()
