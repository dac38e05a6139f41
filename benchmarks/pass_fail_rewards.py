"""Rewards of 0 and 1, as the planner would take them if it knew that there is nothing between.

What is believed of a pass rate is Beta(total, count - total), by so many scores and passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spotlight.policies.exploration.reward_spread import (
    ContinuousRewards,
    Evidence,
    Population,
    Standing,
    visit,
)

PASS_FAIL_COUNTS = 2.0
"""Pseudo-counts that hold a prompt's pass rate to that of its category."""


class PassFailRewards(ContinuousRewards):
    """One reward, which is 0 or 1."""

    ignorance = Population(2.0, 1.0)

    def __init__(self) -> None:
        super().__init__((0.0, 1.0))

    def problem_with(self, rewards: Sequence[float]) -> str:
        """See `ContinuousRewards`."""
        passed = len(rewards) == 1 and rewards[0] in (0.0, 1.0)
        return "" if passed else f"one reward of 0 or 1 was expected, not {list(rewards)}"

    def evidence(self, rewards: Sequence[float]) -> Evidence:
        """See `ContinuousRewards`."""
        return Evidence(len(rewards), math.fsum(rewards))

    def visit(self, rewards: Sequence[float]) -> Population:
        """See `ContinuousRewards`."""
        return visit(math.fsum(rewards) / len(rewards)) if rewards else Population()

    def prior(self, population: Population) -> Evidence:
        """See `ContinuousRewards`. A weak one, however alike prompts are: a prompt that is believed
        never to fail is not asked again, and its first failure would bring most."""
        return Evidence(PASS_FAIL_COUNTS, PASS_FAIL_COUNTS * population.mean())

    def parameter(self, belief: Evidence) -> float:
        """See `ContinuousRewards`."""
        return belief.total / belief.count

    def first_contrast(self, belief: Evidence, keep: int, full: float) -> float:
        """See `ContinuousRewards`; at the expected pass rate."""
        rate = self.parameter(belief)
        return math.fsum(
            math.comb(keep, passes)
            * rate**passes
            * (1 - rate) ** (keep - passes)
            * pass_contrast(passes, keep - passes, keep)
            for passes in range(1, keep)
        )

    def gain(self, parameter: float, group: Standing, keep: int, full: float) -> float:
        """See `ContinuousRewards`. Scores that are awaited are taken at their expectation."""
        awaited = group.live - group.scored.count
        passes = group.scored.total + awaited * parameter
        fails = group.live - passes
        gain = (
            parameter * pass_contrast(passes + 1, fails, keep)
            + (1 - parameter) * pass_contrast(passes, fails + 1, keep)
            - pass_contrast(passes, fails, keep)
        )
        return max(0.0, gain)


def pass_contrast(passes: float, fails: float, keep: int) -> float:
    """The contrast of so many 1s and 0s, together at least `keep`. Expected counts may be
    fractions."""
    minority = min(passes, fails, keep // 2)
    return math.sqrt(minority * (keep - minority)) / keep
