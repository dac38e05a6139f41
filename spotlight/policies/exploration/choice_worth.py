"""How much more the best of many previews teach than random ones, estimated from the rewards of the
previews themselves.

What a sample teaches is taken to grow with the variance of the kept rewards of its prompt group.
The K of N that vary most have c(N / K) times the variance of K random ones, and c(n) is close to
1 + a ln n. How large `a` is depends on the shape of the rewards and a little on K: 1.4 on the OCR
example, 0.5 to 0.9 on its prompts from solved to hopeless, 0.2 where half of the images pass a
test, 1.7 for normally distributed rewards. So a run estimates its own.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spotlight.policies.exploration.contrast import best_contrast, squared_deviations
from spotlight.policies.exploration.fidelity import Totals

USUAL = 1.0
"""`a` before anything is known. On the tables of real rewards that the benchmarks have it is 0.5
to 1.4, and 1.03 in the mean."""
USUAL_GROUPS = 4.0
"""Prompt groups, of e times as many previews as are kept, which count as much as that guess."""


class ChoiceWorth(Totals, frozen=True):
    """Sums over prompt groups that could choose; they add up, and fade."""

    groups: float = 0.0
    at_random: float = 0.0
    """Variances to expect of as many rewards as are kept, taken at random."""
    kept: float = 0.0
    """Variances of those that vary most."""
    looked: float = 0.0
    """The variances at random, each times ln(previews / kept)."""

    @property
    def slope(self) -> float:
        """`a`: a ratio of sums, in which what is usual stands for some groups more."""
        if self.at_random <= 0:
            return USUAL
        guess = USUAL_GROUPS * self.at_random / self.groups
        return (self.kept - self.at_random + USUAL * guess) / (self.looked + guess)

    def of(self, previews_per_sample: float) -> float:
        """c(n): how many times as much a sample teaches that is one of n, of which the best are
        kept, as a random one."""
        return 1 + self.slope * math.log(previews_per_sample)


def choice_worth(groups: Sequence[Sequence[float]], keep: int) -> ChoiceWorth:
    """What the rewards of an iteration's previews tell; nothing of groups that had no choice.

    Args:
        groups: rewards of each prompt group.
        keep: so many of each are kept.
    """
    found = ChoiceWorth()
    for rewards in groups:
        if len(rewards) > keep:
            spread = squared_deviations(rewards) / (len(rewards) - 1) * (keep - 1) / keep
            kept = best_contrast(sorted(rewards), keep) ** 2
            found += ChoiceWorth(1.0, spread, kept, spread * math.log(len(rewards) / keep))
    return found
