"""How several rewards of a candidate become one value.

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


def pooled_weights(groups: Iterable[Sequence[tuple[float, ...]]], rewards: int) -> list[float]:
    """For each of `rewards` rewards 1 / its standard deviation around the group means, pooled over
    the groups (each a sequence of candidates' rewards).

    A single reward is left as it is, with weight 1. One that never varies inside a group gets
    weight 0: it contrasts nothing.
    """
    if rewards == 1:
        return [1.0]
    squares = [0.0] * rewards
    degrees = 0
    for group in groups:
        degrees += max(0, len(group) - 1)
        for index, values in enumerate(zip(*group, strict=True)):
            squares[index] += squared_deviations(sorted(values))
    return [math.sqrt(degrees / square) if square > 0 else 0.0 for square in squares]


def combined(rewards: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted sum."""
    return math.fsum(map(mul, rewards, weights))
