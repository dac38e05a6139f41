"""Small bandits with made-up rewards, for the tests of who is given candidates."""

from __future__ import annotations

import random
from collections import Counter

from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.planners import ExplorationPlanner
from spotlight.policies.exploration.reward_spread import UNLIMITED, ContinuousRewards, Population

ANY = ContinuousRewards(UNLIMITED)
BOUNDED = ContinuousRewards((0.0, 1.0))


def planner(groups: int = 4, **changes) -> BanditPlanner:
    settings = {
        "job_seed": 5,
        "iteration": 3,
        "prompts": [f"prompt {number}" for number in range(groups)],
        "keep": 4,
        "candidates": 12,
        "most": 32,
        "rewards": ANY,
    }
    return BanditPlanner(**(settings | changes))


def explore(plan: ExplorationPlanner, reward, chunk: int = 6) -> Counter[int]:
    """Plan and record until nothing more is planned; candidates by group."""
    issued: Counter[int] = Counter()
    while candidates := plan.next_chunk(chunk):
        for candidate in candidates:
            issued[candidate.group] += 1
            plan.record(candidate, reward(candidate))
    return issued


def normal(stds):
    """Normal rewards that depend on the candidate alone; one standard deviation per group."""
    return lambda candidate: random.Random(candidate.seed).gauss(0.5, stds[candidate.group])


def alike(std: float, visits: float = 100.0, differing: float = 0.0) -> Population:
    """Prompts of one standard deviation, or whose variances have this squared coefficient of
    variation."""
    variance = std * std
    return Population(visits, visits * variance, visits * variance**2 * (1 + differing))
