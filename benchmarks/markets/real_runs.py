"""Runs of Spotlight with real numerics whose spot nodes are fewer than the test-bed has, or come
and go: how many previews there are then, and how many iterations it takes to the same score.

    python -m benchmarks.markets.real_runs --task ocr --seed 11 --nodes 1

Some minutes of one core each. They are kept like the runs of `benchmarks.exploration`; the target
of a seed is that of its other runs, since no rival's samples depend on the spot pool.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.exploration.cases import PROFILES, Case
from benchmarks.exploration.kept_runs import RUNS, KeptRuns, Made, Run
from benchmarks.exploration.rivals import OURS
from benchmarks.exploration.settings import GPUS_OF_SPOT_NODE
from benchmarks.exploration.testbed_runs import VirtualRuns
from benchmarks.virtual_testbed import preemption, run_on_testbed
from spotlight.errors import SpotlightError
from spotlight_simulation.chaos import scratch_folder
from spotlight_simulation.faults import Fault
from spotlight_simulation.profile import load_profile


class Absence(msgspec.Struct, frozen=True):
    """A node that the market takes, and when another one comes instead."""

    at_s: float
    node: str
    away_s: float


class MarketRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of Spotlight."""

    task: str
    seed: int
    nodes: int
    """The spot nodes that it asks for, of two GPUs each."""
    market: str = ""
    """The market that its nodes come and go on; none: they stay."""
    absences: tuple[Absence, ...] = ()

    @property
    def name(self) -> str:
        """Of the file that it is kept in."""
        on = f"-{self.market}" if self.market else ""
        return f"{self.task}-{self.seed}-nodes-{self.nodes}{on}"

    @property
    def case(self) -> Case:
        """The run of the test-bed that has all other settings."""
        return Case(task=self.task, rival=OURS, seed=self.seed)


class MarketRuns:
    """Those in a folder."""

    def __init__(self, folder: Path) -> None:
        self._kept = KeptRuns(folder / "markets")
        self._others = VirtualRuns(folder, quick=False)

    def read(self, run: MarketRun) -> Run | None:
        """None if it was not made yet. Raises `NoReference`."""
        return self._kept.read(run.name, self._made(run))

    def make(self, run: MarketRun) -> None:
        """Raises what the test-bed raises, and `NoReference`."""
        from spotlight_simulation.real_numerics import RealNumerics  # torch: not for --help

        made, goal = self._made(run), self._others.goal(run.case)
        with scratch_folder() as scratch:
            done = run_on_testbed(
                made.job,
                profile=load_profile(PROFILES[run.case.profile]),
                numerics=RealNumerics(made.job),
                folder=scratch,
                faults=_faults(run.absences),
                target=goal.target,
                limit_s=goal.limit_s,
            )
        points = [(each.time_s, each.version, each.score) for each in done.validation]
        totals = msgspec.to_builtins(done.totals)
        kept = {"validation": points, "iterations": len(done.iterations), "totals": totals}
        self._kept.keep(run.name, made, kept)

    def _made(self, run: MarketRun) -> Made:
        case = msgspec.structs.replace(run.case, spot_gpus=run.nodes * GPUS_OF_SPOT_NODE)
        facts = self._others.made(run.case).facts
        facts["absences"] = msgspec.to_builtins(run.absences)
        return Made(case.job(), facts)


def _faults(absences: Sequence[Absence]) -> list[Fault]:
    return [preemption(one.at_s, one.node, one.away_s) for one in absences]


def main() -> None:
    """Make one run, if it is missing."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--task", required=True)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--nodes", type=int, required=True)
    given = options.parse_args()
    import torch  # not for --help

    torch.set_num_threads(1)
    run = MarketRun(task=given.task, seed=given.seed, nodes=given.nodes)
    runs = MarketRuns(RUNS)
    try:
        if runs.read(run) is None:
            runs.make(run)
    except SpotlightError as error:
        sys.exit(f"real_runs: {run.name}: {error}")


if __name__ == "__main__":
    main()
