"""Combines several rewards of an image into one value.

Several rewards are divided, one by one, by their pooled in-group standard deviation before they are
summed, so that none drowns the others by its unit (GDPO, arXiv 2601.05242, normalises every reward
by itself). The scale is common to all prompt groups: with each group's own scale, as GDPO uses for
advantages, every group would have the same spread, and no group could be preferred to another.
What is divided away must not be what is maximised. A group's mean needs no subtraction: a spread
does not see it. Advantages over the standard deviation of the whole batch use the same scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import mul

from spotlight.policies.exploration.contrast import squared_deviations


def reward_scale(
    groups: Iterable[Sequence[tuple[float, ...]]], weights: Sequence[float]
) -> list[float]:
    """What each reward is multiplied with before they are summed: its weight, over its standard
    deviation around the group means, pooled over the groups (each a sequence of candidates'
    rewards).

    A single reward is left as it is, with scale 1. One that never varies inside a group gets 0: it
    contrasts nothing.
    """
    if len(weights) == 1:
        return [1.0]
    squares = [0.0] * len(weights)
    degrees = 0
    for group in groups:
        degrees += max(0, len(group) - 1)
        for index, values in enumerate(zip(*group, strict=True)):
            squares[index] += squared_deviations(sorted(values))
    return [
        weight * math.sqrt(degrees / square) if square > 0 else 0.0
        for weight, square in zip(weights, squares, strict=True)
    ]


def each_reward(reward: float | Sequence[float]) -> tuple[float, ...]:
    """The rewards of a candidate; a number stands for a single one."""
    return tuple(map(float, reward if isinstance(reward, Sequence) else [reward]))


def combined(rewards: Sequence[float], scale: Sequence[float]) -> float:
    """The sum of the rewards on their scale."""
    return math.fsum(map(mul, rewards, scale))


def weighted_mean(rewards: Sequence[float], weights: Sequence[float]) -> float:
    """Of the rewards as they are: what people are shown. A single reward is its own mean."""
    if len(weights) == 1:
        return rewards[0]
    return math.fsum(map(mul, rewards, weights)) / math.fsum(weights)
