"""Runs of Spotlight with real numerics whose spot nodes are fewer than the test-bed has, or come
and go: how many previews there are then, and how many iterations it takes to the same score.

    python -m benchmarks.markets.real_runs --task ocr --seed 11 --nodes 1
    python -m benchmarks.markets.real_runs --task ocr --seed 11 --nodes 4 --market p3-trace

Some minutes of one core each. They are kept like the runs of `benchmarks.exploration`; the target
of a seed is that of its other runs, since no rival's samples depend on the spot pool. The trace of
a market is compressed to the clock of the test-bed, where a job takes a seventieth of the time.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.exploration.cases import PROFILES, Case
from benchmarks.exploration.kept_runs import RUNS, KeptRuns, Made, Run
from benchmarks.exploration.rivals import OURS
from benchmarks.exploration.settings import COMPOSITIONAL, GPUS_OF_SPOT_NODE, OCR
from benchmarks.exploration.testbed_runs import NoReference, VirtualRuns
from benchmarks.virtual_testbed import preemption, run_on_testbed
from spotlight.errors import SpotlightError
from spotlight_simulation.chaos import scratch_folder
from spotlight_simulation.faults import Fault
from spotlight_simulation.market.batch_model import BOOT_S, unrolled
from spotlight_simulation.market.readers import read_trace
from spotlight_simulation.market.schedule import Schedule
from spotlight_simulation.market.trace import NOTICE_S
from spotlight_simulation.profile import load_profile

TIMES = 70.0
"""A market's time over that of the test-bed: a job of a hundred hours on the reserved GPUs alone
takes them 5,100 s there on the OCR task."""
_LONGEST_S = 7000.0
"""Longer than any run on the test-bed may take. [s]"""
_BEGINS_S = 1.0
"""A place without a node at the beginning loses the one that the test-bed begins with. [s]"""


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
        """None if it was not made yet, or has nothing that it is measured against."""
        try:
            return self._kept.read(run.name, self._made(run))
        except NoReference:
            return None

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
        facts["absences"] = [msgspec.to_builtins(each) for each in run.absences]
        return Made(case.job(), facts)


def market_run(task: str, seed: int, nodes: int, market: str) -> MarketRun:
    """On a market of those that ship with Spotlight, by the name of its trace; none: without."""
    absences = absences_of(compressed(market, nodes)) if market else ()
    return MarketRun(task=task, seed=seed, nodes=nodes, market=market, absences=absences)


def stretched(market: str, nodes: int) -> Schedule:
    """A market as it was, twice as long as any run on the test-bed takes of it."""
    trace = read_trace(f"bamboo/{market}.csv").without_holes()
    drawn = trace.schedule(pool=nodes, generator=random.Random(market))
    return unrolled(drawn, start_s=0.0, seconds=2 * _LONGEST_S * TIMES)


def compressed(market: str, nodes: int) -> Schedule:
    """A market in the time of the test-bed, as long as any run there."""
    long = unrolled(stretched(market, nodes), start_s=0.0, seconds=_LONGEST_S * TIMES)
    stays = [
        msgspec.structs.replace(stay, from_s=stay.from_s / TIMES, until_s=stay.until_s / TIMES)
        for stay in long.stays
    ]
    return msgspec.structs.replace(long, seconds=_LONGEST_S, stays=tuple(stays))


def absences_of(schedule: Schedule) -> tuple[Absence, ...]:
    """Each node of a schedule in a place of the test-bed that is free, which is there but for the
    time between two of them and until the second has booted. Who is taken before that never was."""
    boot_s = BOOT_S / TIMES
    free_since = dict.fromkeys(range(schedule.pool), _BEGINS_S)
    found = []
    booted = [stay for stay in schedule.stays if stay.until_s > stay.from_s + boot_s]
    for stay in sorted(booted, key=lambda stay: stay.from_s):
        place = min(free_since, key=lambda each: free_since[each])
        if stay.from_s > 0:
            away_s = stay.from_s + boot_s - free_since[place]
            found.append(Absence(free_since[place], f"spot-{place}", away_s))
        free_since[place] = stay.until_s
    found += [
        Absence(at_s, f"spot-{place}", schedule.seconds)
        for place, at_s in free_since.items()
        if at_s < schedule.seconds
    ]
    return tuple(sorted(found, key=lambda each: each.at_s))


def _faults(absences: Sequence[Absence]) -> list[Fault]:
    notice_s = NOTICE_S / TIMES
    return [preemption(one.at_s, one.node, one.away_s, notice_s) for one in absences]


def main() -> None:
    """Make one run, if it is missing."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--task", required=True, choices=(OCR, COMPOSITIONAL))
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--nodes", type=int, required=True)
    options.add_argument("--market", default="", help="the name of a trace of `bamboo`")
    given = options.parse_args()
    import torch  # not for --help

    torch.set_num_threads(1)
    runs = MarketRuns(RUNS)
    try:
        run = market_run(given.task, given.seed, given.nodes, given.market)
        if runs.read(run) is None:
            runs.make(run)
    except SpotlightError as error:
        sys.exit(f"real_runs: {error}")


if __name__ == "__main__":
    main()
