"""What survives: many simulated jobs, each disturbed by faults that follow from its seed.

    python -m benchmarks.chaos --json [--quick]

The real coordinator, nodes and group leaders run on virtual time; every history is checked against
the invariants of `spotlight.testing.invariants`. A fault counts only where it changed something.

Figures: `violations` are seeds whose history breaks an invariant, `fewest_effective_faults` is the
count of the rarest kind of fault.
"""

from __future__ import annotations

import sys
import time

from benchmarks.report import Figure, arguments, finish
from spotlight.testing.chaos import run_seeds, total_effects

SEEDS = 2000
QUICK_SEEDS = 40


def main() -> None:
    """Run all seeds and print the figures."""
    options = arguments(__doc__)
    count = QUICK_SEEDS if options.quick else SEEDS
    began = time.monotonic()
    outcomes = list(run_seeds(range(count)))
    seconds = time.monotonic() - began
    effects = total_effects(outcomes)
    bad = [outcome.seed for outcome in outcomes if outcome.violations]
    figures: dict[str, Figure] = {
        "seeds": count,
        "seconds": round(seconds, 1),
        "violations": len(bad),
        "fewest_effective_faults": min(effects.values()),
        "virtual_hours": round(sum(outcome.virtual_s for outcome in outcomes) / 3600, 1),
    }
    figures |= {f"effective_{kind}": effect for kind, effect in effects.items()}
    for seed in bad:
        print(f"replay with: spotlight chaos --seed {seed}", file=sys.stderr)
    finish("chaos", figures, options.json)


if __name__ == "__main__":
    main()
