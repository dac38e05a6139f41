"""`spotlight chaos --live`: faults against real processes of this machine, each run from a seed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from spotlight.preflight import SCORER_MODULES, WORKER_MODULES, require_packages

if TYPE_CHECKING:
    from spotlight.simulation.live_chaos import LiveOutcome


def try_live(first: int, count: int) -> int:
    """Run seeds one after another and print what struck and what was violated; returns the exit
    code.
    """
    who = "`spotlight chaos --live` needs"
    require_packages((*WORKER_MODULES, "psutil"), "worker", who)
    require_packages(SCORER_MODULES["ocr"], "rewards", who)
    from spotlight.simulation.live_chaos import LiveCase, run_live

    console = Console()
    cases = [LiveCase(seed) for seed in range(first, first + count)]
    outcomes: list[LiveOutcome] = []
    with Console(stderr=True).status("an undisturbed run, to compare with") as status:
        for outcome in run_live(cases):
            outcomes.append(outcome)
            status.update(f"{len(outcomes)} of {count} seeds")
    struck: Counter[str] = Counter()
    for outcome in outcomes:
        struck.update(outcome.effective)
    table = Table("fault", "struck", title="Faults that struck the running job")
    table.columns[1].justify = "right"
    for kind in sorted(struck):
        table.add_row(kind, str(struck[kind]))
    console.print(table)
    console.print(f"partitions: {outcomes[0].partitions}", markup=False, soft_wrap=True)
    bad = [outcome for outcome in outcomes if outcome.violations]
    for outcome in bad:
        for violation in outcome.violations:
            console.print(f"{outcome.case}: {violation}", markup=False, soft_wrap=True)
        console.print(f"{outcome.case}: its logs are in {outcome.kept}", soft_wrap=True)
    seconds = sum(outcome.seconds for outcome in outcomes)
    console.print(f"{count} seeds in {seconds:.1f} s, {len(bad)} with violations")
    return 1 if bad else 0
