"""Which candidates of a prompt become samples: the subset whose rewards vary most.

Exactly optimal: no subset of the same size has a larger variance. Arithmetic is exact, so the
choice never depends on rounding, on the order in which candidates arrived, or on the machine. An
optimum holds candidates of both ends by itself, so no least share of either end is enforced: it
could only lower the variance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate

_MASK = 2**64 - 1


def max_variance_subset(
    rewards: Sequence[float], keep: int, *, tie_break: Sequence[int] | random.Random
) -> list[int]:
    """Indices, ascending, of `keep` rewards with the largest variance, in O(N log N).

    The optimum is always the k highest and the `keep` - k lowest rewards for some k (PODS, arXiv
    2504.13818), so one sort and prefix sums find it. Of several optima, the one nearest to halves
    is taken, with the odd one at the top.

    Among equal rewards a hash decides, never the position: of the integers in `tie_break`, one per
    reward (candidate seeds, say), which makes the choice independent of the order of the
    candidates; or of numbers drawn from a generator.

    Raises `ValueError` when `keep` is not in [1, N], a reward is not finite, or `tie_break` has
    another length.
    """
    count = len(rewards)
    if not 1 <= keep <= count:
        raise ValueError(f"keep must be between 1 and the {count} rewards, not {keep}")
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError("rewards must be finite")
    if isinstance(tie_break, random.Random):
        tie_break = [tie_break.getrandbits(64) for _ in rewards]
    if len(tie_break) != count:
        raise ValueError(f"tie_break has {len(tie_break)} integers for {count} rewards")

    order = sorted(range(count), key=lambda index: (rewards[index], _hash(tie_break[index])))
    values = _exact([rewards[index] for index in order])
    sums = list(accumulate(values, initial=0))
    squares = list(accumulate((value * value for value in values), initial=0))

    def merit(top: int) -> tuple[int, int, int]:
        bottom, first = keep - top, count - top
        total = sums[bottom] + sums[count] - sums[first]
        square = squares[bottom] + squares[count] - squares[first]
        return keep * square - total * total, -abs(top - bottom), top

    top = max(range(keep + 1), key=merit)
    return sorted(order[: keep - top] + order[count - top :])


def _exact(values: Sequence[float]) -> list[int]:
    """The values times one common power of two: integers without rounding."""
    ratios = [float(value).as_integer_ratio() for value in values]
    scale = max(denominator for _, denominator in ratios)
    return [numerator * (scale // denominator) for numerator, denominator in ratios]


def _hash(value: int) -> int:
    """A bijective 64-bit mix (the finalizer of SplitMix64): neighbours come out unrelated."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
