"""What the exploration planner decides per second, keeps of real rewards, and loses to an oracle:
`python -m benchmarks.exploration_planner --json`.

Speed: 10,000 prompts are known, an iteration has 1,000 groups of K = 24 with 96 candidates each on
average; a decision is a candidate that is planned, scored and recorded, and the choice of seeds is
timed by itself.

Tables: `contrast_vs_uniform_worst` and what belongs to it is described in `exploration_tables`.

Regret: 1 - contrast / contrast of the oracle, where contrast is the sum over 48 groups (K = 8) of
the standard deviation of the kept rewards, and the oracle is the planner with the true spread in
place of belief. Medians over seeds, for planners that give out the same budget:
- `bandit` is the planner as it is,
- `uniform` gives every group the same number,
- `greedy` is the bandit without its uniform share,
- `thompson` draws the spread from belief, `ucb` takes the 95 % bound of belief, where the bandit
  takes what is expected; both without a uniform share.
Synthetic prompts, four candidates per kept seed: `gaussian` (standard deviations log-normal around
1), `passfail` (pass rates Beta(0.4, 0.4), many near 0 and 1), and `drift`, ten iterations of
Gaussian prompts whose spreads wander and of which a quarter changes altogether, two candidates per
kept seed, with what was learnt handed on.

Coverage: how often the bandit's 90 % interval of a prompt's standard deviation, as it is believed
at the end of an iteration, holds the true one. For a table (where that of all its seeds is taken as
true, also if it is 0, which no interval holds) it is the mean over its cells; `coverage_90` is the
mean over the tables and the two Gaussian scenarios, each counting as much as the others.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.exploration_tables import coverages_of, covers, table_figures
from benchmarks.pass_fail_rewards import PassFailRewards
from benchmarks.report import Report
from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.contrast import best_contrast, expected_contrast
from spotlight.policies.exploration.planners import UniformPlanner
from spotlight.policies.exploration.reward_spread import (
    UNLIMITED,
    ContinuousRewards,
    Evidence,
    Knowledge,
    Limits,
    Standing,
)

KEEP = 8
GROUPS = 48
CHUNK = 16
CERTAIN = 1e12
"""Counts that leave no doubt."""

PROMPTS = 10_000

RIVALS = ("uniform", "greedy", "ucb", "thompson")
GAUSSIAN = ("gaussian", "drift")


def main() -> None:
    """Measure and print."""
    report = Report("exploration_planner", __doc__, minutes=15)
    report.add(_speed(report.begin().quick))
    tables = table_figures(report.times(120, quick=4))
    report.add(tables)
    regrets, coverages = _regrets(range(report.times(24, quick=1)))
    coverage = statistics.fmean([*coverages_of(tables), *coverages.values()])
    report.add({**regrets, **coverages, "coverage_90": round(coverage, 4)})
    report.finish()


# --- speed ---


def _speed(quick: bool) -> dict[str, float | int]:
    rate, choose_s = _rate(
        groups=1_000, keep=24, candidates=(2 if quick else 4) * 24, repeats=1 if quick else 3
    )
    many, _ = _rate(groups=10_000, keep=8, candidates=9 if quick else 16, repeats=1)
    return {
        "prompts": PROMPTS,
        "groups": 1_000,
        "decisions_per_second": round(rate),
        "choose_s": round(choose_s, 3),
        "decisions_per_second_10000_groups": round(many),
    }


def _rate(*, groups: int, keep: int, candidates: int, repeats: int) -> tuple[float, float]:
    """Decisions per second, and seconds of a choice; medians of so many iterations."""
    rng = random.Random(0)
    known = Knowledge({f"prompt {n}": Evidence(40.0, 40.0 * rng.random()) for n in range(PROMPTS)})
    rates, choices = [], []
    for iteration in range(repeats):
        planner = BanditPlanner(
            job_seed=0,
            iteration=iteration,
            prompts=[f"prompt {n}" for n in rng.sample(range(PROMPTS), groups)],
            keep=keep,
            candidates=candidates,
            most=2 * candidates,
            rewards=ContinuousRewards(UNLIMITED),
            categories=[f"category {n % 6}" for n in range(groups)],
            knowledge=known,
        )
        spreads = [rng.random() for _ in range(groups)]
        start, decisions = time.perf_counter(), 0
        while chunk := planner.next_chunk(64):
            decisions += len(chunk)
            for candidate in chunk:
                planner.record(candidate, rng.gauss(0, spreads[candidate.group]))
        rates.append(decisions / (time.perf_counter() - start))
        start = time.perf_counter()
        planner.choose()
        choices.append(time.perf_counter() - start)
        known = known.after(planner.learnt())
    return statistics.median(rates), statistics.median(choices)


# --- regret ---


class _TrueSpread(ContinuousRewards):
    def gain(self, parameter: float, group: Standing, keep: int, full: float) -> float:
        more, now = (expected_contrast(live, keep) for live in (group.live + 1, group.live))
        return parameter * (more - now)


class _UpperSpread(ContinuousRewards):
    def parameter(self, belief: Evidence) -> float:
        error = 1 / math.sqrt(2 * belief.count) if belief.count else 0.0
        return super().parameter(belief) * (1 + 1.645 * error)


class _DrawnSpread(ContinuousRewards):
    def __init__(self, *limits: Limits) -> None:
        super().__init__(*limits)
        self._rng = random.Random(0)

    def parameter(self, belief: Evidence) -> float:
        if belief.count <= 0:
            return 0.0
        return math.sqrt(belief.total / max(1e-9, 2 * self._rng.gammavariate(belief.count / 2, 1)))


class _UpperRate(PassFailRewards):
    """The rate that spreads most within the interval."""

    def parameter(self, belief: Evidence) -> float:
        rate = super().parameter(belief)
        error = 1.645 * math.sqrt(rate * (1 - rate) / belief.count)
        return min(max(0.5, rate - error), rate + error)


class _DrawnRate(PassFailRewards):
    def __init__(self) -> None:
        super().__init__()
        self._rng = random.Random(0)

    def parameter(self, belief: Evidence) -> float:
        return self._rng.betavariate(belief.total, belief.count - belief.total)


@dataclass(frozen=True)
class _Scenario:
    kinds: dict[str, ContinuousRewards]
    """The kinds that the rivals have in place of the bandit's."""
    new: Callable[[random.Random], float]
    """A prompt's true parameter."""
    reward: Callable[[random.Random, float], float]
    truth: Callable[[float], Evidence]
    candidates: int
    iterations: int


_CONTINUOUS: dict[str, ContinuousRewards] = {
    "bandit": ContinuousRewards(UNLIMITED),
    "oracle": _TrueSpread(UNLIMITED),
    "ucb": _UpperSpread(UNLIMITED),
    "thompson": _DrawnSpread(UNLIMITED),
}
_PASS_FAIL: dict[str, ContinuousRewards] = {
    "bandit": PassFailRewards(),
    "ucb": _UpperRate(),
    "thompson": _DrawnRate(),
}


def _gaussian(candidates: int, iterations: int) -> _Scenario:
    return _Scenario(
        kinds=_CONTINUOUS,
        new=lambda rng: rng.lognormvariate(0, 0.7),
        reward=lambda rng, std: rng.gauss(0, std),
        truth=lambda std: Evidence(CERTAIN, CERTAIN * std * std),
        candidates=candidates,
        iterations=iterations,
    )


SCENARIOS = {
    "gaussian": _gaussian(candidates=4 * KEEP, iterations=1),
    "passfail": _Scenario(
        kinds=_PASS_FAIL,
        new=lambda rng: min(max(rng.betavariate(0.4, 0.4), 0.001), 0.999),
        reward=lambda rng, rate: float(rng.random() < rate),
        truth=lambda rate: Evidence(CERTAIN, CERTAIN * rate),
        candidates=4 * KEEP,
        iterations=1,
    ),
    "drift": _gaussian(candidates=2 * KEEP, iterations=10),
}


def _regrets(seeds: Sequence[int]) -> tuple[dict[str, float], dict[str, float]]:
    """Regrets, and coverages of the bandit's beliefs."""
    figures: dict[str, float] = {}
    coverages: dict[str, float] = {}
    totals = dict.fromkeys(("bandit", *RIVALS), 0.0)
    for name, scenario in SCENARIOS.items():
        oracle = [_explored(scenario, "oracle", seed).contrast for seed in seeds]
        for planner in totals:
            explored = [_explored(scenario, planner, seed) for seed in seeds]
            losses = [1 - got.contrast / most for got, most in zip(explored, oracle, strict=True)]
            regret = statistics.median(losses)
            totals[planner] += regret
            figures[f"{name}_regret_{planner}"] = round(regret, 4)
            if planner == "bandit" and name in GAUSSIAN:
                covered = statistics.fmean(held for got in explored for held in got.covered)
                coverages[f"{name}_coverage_90"] = round(covered, 4)
    for rival in RIVALS:
        figures[f"regret_vs_{rival}"] = round(totals["bandit"] / totals[rival], 3)
    return figures, coverages


@dataclass
class _Explored:
    contrast: float = 0.0
    """Summed over all iterations."""
    covered: list[bool] = field(default_factory=list)


def _explored(scenario: _Scenario, name: str, seed: int) -> _Explored:
    """A prompt's rewards are the same for all planners."""
    world = random.Random(seed)
    parameters = [scenario.new(world) for _ in range(GROUPS)]
    knowledge = Knowledge()
    explored = _Explored()
    for iteration in range(scenario.iterations):
        sources = [random.Random(world.getrandbits(64)) for _ in parameters]
        if name == "oracle":
            knowledge = Knowledge({str(n): scenario.truth(p) for n, p in enumerate(parameters)})
        planner = _planner(scenario, name, seed, iteration, knowledge)
        rewards = [
            partial(scenario.reward, *each) for each in zip(sources, parameters, strict=True)
        ]
        scored = _explore(planner, rewards)
        explored.contrast += sum(best_contrast(sorted(group), KEEP) for group in scored)
        if isinstance(planner, BanditPlanner):
            knowledge = knowledge.after(planner.learnt())
            explored.covered += [
                covers(planner.belief(group), parameter)
                for group, parameter in enumerate(parameters)
            ]
        parameters = [
            scenario.new(world) if world.random() < 0.25 else value * world.lognormvariate(0, 0.1)
            for value in parameters
        ]
    return explored


class _Greedy(BanditPlanner):
    """The bandit without its uniform share."""

    UNIFORM_EVERY = sys.maxsize


def _planner(
    scenario: _Scenario, name: str, seed: int, iteration: int, knowledge: Knowledge
) -> BanditPlanner | UniformPlanner:
    if name == "uniform":
        return UniformPlanner(
            job_seed=seed,
            iteration=iteration,
            groups=GROUPS,
            keep=KEEP,
            candidates=scenario.candidates,
        )
    kind = BanditPlanner if name == "bandit" else _Greedy
    return kind(
        job_seed=seed,
        iteration=iteration,
        prompts=[str(number) for number in range(GROUPS)],
        keep=KEEP,
        candidates=scenario.candidates,
        most=8 * KEEP,
        rewards=scenario.kinds.get(name, scenario.kinds["bandit"]),
        knowledge=knowledge,
    )


def _explore(
    planner: BanditPlanner | UniformPlanner, rewards: Sequence[Callable[[], float]]
) -> list[list[float]]:
    """The rewards of every group; a chunk is scored while the next is already planned."""
    scored: list[list[float]] = [[] for _ in range(GROUPS)]
    awaited = planner.next_chunk(CHUNK)
    while awaited:
        following = planner.next_chunk(CHUNK)
        for candidate in awaited:
            value = rewards[candidate.group]()
            scored[candidate.group].append(value)
            planner.record(candidate, value)
        awaited = following or planner.next_chunk(CHUNK)
    return scored


if __name__ == "__main__":
    main()
