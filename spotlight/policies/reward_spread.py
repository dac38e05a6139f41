"""What is believed about the spread of each prompt's rewards, over iterations.

Evidence is a pair of sums, which add up, fade and pool alike for both kinds of reward:

| rewards | count | total | Thompson draw |
|---|---|---|---|
| continuous | degrees of freedom | squared deviations | s^2 ~ InvGamma(count / 2, total / 2) |
| pass or fail | scores | passes | p ~ Beta(total, count - total) |

A prompt that was seldom met shrinks to its category, and a category to all prompts: each has a few
pseudo-counts at the mean of what is above it as its prior. The policy moves, so evidence fades: it
is multiplied by `FADING` when its prompt, or category, is met again (SuperFlow, arXiv 2512.17951).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spotlight.policies.contrast import expected_contrast, pass_contrast, squared_deviations

FADING = 0.7
"""What is left of evidence when its prompt or category is met again."""

PRIOR_COUNTS = 2.0
"""Pseudo-counts that hold a prompt to its category, and a category to all prompts."""

_LEAST_GAMMA = 1e-9
"""A draw may be 0 and is divided by."""


@dataclass(frozen=True)
class Evidence:
    """Two sums over scored candidates; see the module's docstring."""

    count: float = 0.0
    total: float = 0.0

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.count + other.count, self.total + other.total)

    def __sub__(self, other: Evidence) -> Evidence:
        return Evidence(self.count - other.count, self.total - other.total)

    def __mul__(self, factor: float) -> Evidence:
        return Evidence(self.count * factor, self.total * factor)

    def as_prior(self) -> Evidence:
        """The same mean at `PRIOR_COUNTS`; nothing when there is no evidence."""
        return self * (PRIOR_COUNTS / self.count) if self.count > 0 else Evidence()


@dataclass(frozen=True)
class Knowledge:
    """What all iterations so far taught: plain numbers by prompt and by category, for the caller to
    keep."""

    prompts: Mapping[str, Evidence] = field(default_factory=dict)
    categories: Mapping[str, Evidence] = field(default_factory=dict)


Limits = tuple[float, float]
"""The least and the greatest valid value of a reward, both included."""

UNLIMITED: Limits = (-1e100, 1e100)
"""Any value whose square can be summed."""


class RewardKind(Protocol):
    """What a candidate's score is, what scores tell, and what one more candidate is worth."""

    @property
    def limits(self) -> Sequence[Limits]:
        """Of each reward of a candidate."""

    def problem_with(self, rewards: Sequence[float]) -> str:
        """Why these cannot be the rewards of a candidate; empty if they can."""

    @property
    def ignorance(self) -> Evidence:
        """The evidence about all prompts before anything is scored."""

    def evidence(self, rewards: Sequence[float]) -> Evidence:
        """What the rewards of one group tell."""

    def draw(self, posterior: Evidence, rng: random.Random) -> float:
        """A plausible parameter of the prompt: a standard deviation, or a pass rate."""

    def gain(self, parameter: float, own: Evidence, live: int, keep: int) -> float:
        """The contrast, at least 0, that one more candidate is expected to add to `live` of them,
        at least `keep`, of which those that are scored gave the evidence `own`."""


class ContinuousRewards:
    """Rewards that are taken as normally distributed within a prompt.

    Raises `ValueError` without limits, and for limits that are no interval.
    """

    ignorance = Evidence()

    def __init__(self, *limits: Limits) -> None:
        if not limits or not all(
            UNLIMITED[0] <= low < high <= UNLIMITED[1] for low, high in limits
        ):
            raise ValueError(
                f"every reward needs limits within {UNLIMITED}, the lower first, not {limits}"
            )
        self.limits = limits

    def problem_with(self, rewards: Sequence[float]) -> str:
        """See `RewardKind`."""
        if len(rewards) != len(self.limits):
            return f"{len(rewards)} rewards, but {len(self.limits)} are declared"
        for reward, (low, high) in zip(rewards, self.limits, strict=True):
            if not low <= reward <= high:  # true of NaN as well
                return f"a reward of {reward} is outside [{low:g}, {high:g}]"
        return ""

    def evidence(self, rewards: Sequence[float]) -> Evidence:
        """See `RewardKind`."""
        return Evidence(max(0, len(rewards) - 1), squared_deviations(rewards))

    def draw(self, posterior: Evidence, rng: random.Random) -> float:
        """See `RewardKind`; 0 while nothing is known, and if rewards never differed."""
        if posterior.count <= 0 or posterior.total <= 0:
            return 0.0
        gamma = max(_LEAST_GAMMA, rng.gammavariate(posterior.count / 2, 1))
        return math.sqrt(posterior.total / (2 * gamma))

    def gain(self, parameter: float, own: Evidence, live: int, keep: int) -> float:
        """See `RewardKind`: s (g(n + 1, K) - g(n, K)).

        It looks at the number of candidates only, not at how lucky they were: given the rewards
        so far, the expected gain is a tail probability, which a small error in s changes by much.
        """
        return parameter * (expected_contrast(live + 1, keep) - expected_contrast(live, keep))


class PassFailRewards:
    """One reward, which is 0 or 1."""

    limits = ((0.0, 1.0),)
    ignorance = Evidence(2.0, 1.0)

    def problem_with(self, rewards: Sequence[float]) -> str:
        """See `RewardKind`."""
        passed = len(rewards) == 1 and rewards[0] in (0.0, 1.0)
        return "" if passed else f"one reward of 0 or 1 was expected, not {list(rewards)}"

    def evidence(self, rewards: Sequence[float]) -> Evidence:
        """See `RewardKind`."""
        return Evidence(len(rewards), math.fsum(rewards))

    def draw(self, posterior: Evidence, rng: random.Random) -> float:
        """See `RewardKind`."""
        return rng.betavariate(posterior.total, posterior.count - posterior.total)

    def gain(self, parameter: float, own: Evidence, live: int, keep: int) -> float:
        """See `RewardKind`. Scores that are awaited are taken at their expectation."""
        awaited = live - own.count
        passes = own.total + awaited * parameter
        fails = live - passes
        gain = (
            parameter * pass_contrast(passes + 1, fails, keep)
            + (1 - parameter) * pass_contrast(passes, fails + 1, keep)
            - pass_contrast(passes, fails, keep)
        )
        return max(0.0, gain)
