"""The contrast of a prompt group: the population standard deviation of the subset of K rewards that
has the largest.

That subset always consists of some of the lowest and some of the highest rewards (PODS, arXiv
2504.13818). Floating point: this ranks prompts. Which seeds are kept is decided exactly, in
`planners`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

_NORMAL = NormalDist()


def best_contrast(ordered: Sequence[float], keep: int) -> float:
    """The contrast of rewards in ascending order, in O(keep), however many there are.

    Raises `ValueError` unless `keep` is in [1, N].
    """
    return math.sqrt(_best_split(ordered, keep)[0] / keep)


def contrast_and_gain(ordered: Sequence[float], keep: int) -> tuple[float, float]:
    """The contrast of rewards in ascending order, and what one more reward is expected to add to
    it, if it is any of these again: their bootstrap, in O(keep). It takes the place of one of the
    two kept ones next to their mean.

    Raises `ValueError` unless `keep` is in [1, N].
    """
    count = len(ordered)
    squares, mean, top = _best_split(ordered, keep)
    contrast = math.sqrt(squares / keep)
    kept = [*ordered[: keep - top], *ordered[count - top :]]
    place = bisect_left(kept, mean)
    inner = kept[max(0, place - 1) : place + 1]
    gains = []
    for taken in kept:
        most = squares
        for given in inner:
            shift = (taken - given) / keep
            most = max(most, squares + (taken - given) * (taken - mean - shift + given - mean))
        gains.append(math.sqrt(most / keep) - contrast)
    return contrast, math.fsum(gains) / count


def _best_split(ordered: Sequence[float], keep: int) -> tuple[float, float, int]:
    """The sum of squared deviations of the `keep` rewards that contrast most, their mean, and how
    many of them are the highest; the others are the lowest."""
    count = len(ordered)
    if not 1 <= keep <= count:
        raise ValueError(f"keep must be between 1 and the {count} rewards, not {keep}")
    if ordered[0] == ordered[-1]:
        return 0.0, ordered[0], 0  # without what rounding would make of it
    mean = math.fsum(ordered[:keep]) / keep
    squares = math.fsum((reward - mean) ** 2 for reward in ordered[:keep])
    best = squares, mean, 0
    for top in range(1, keep + 1):  # the highest of the low ones gives way to the next high one
        given, taken = ordered[keep - top], ordered[count - top]
        mean_before = mean
        mean += (taken - given) / keep
        squares += (taken - given) * (taken - mean + given - mean_before)
        if squares > best[0]:
            best = squares, mean, top
    return best


def largest_contrast(keep: int, low: float, high: float) -> float:
    """The contrast of `keep` rewards in [low, high] of which half are at each end, or as nearly
    half as an odd number allows: there is no larger one."""
    half = keep // 2
    return (high - low) * (math.sqrt(half * (keep - half)) / keep)


@cache
def expected_contrast(count: int, keep: int) -> float:
    """g(n, K): the expected contrast of `count` rewards from a standard normal distribution.

    What lies outside of the central interval that holds all but a share f = K/n of the distribution
    has the standard deviation sqrt(1 + 2 c pdf(c) / f), with c the upper end of the interval. The
    factor 1 - 3 / (4 sqrt(n K)) for finite numbers is exact to first order at n = K, elsewhere
    fitted to simulations: within 1.5 % of them from K = 8 on, 3 % for K = 4, 12 % for K = 2.

    Raises `ValueError` unless `keep` is in [2, n].
    """
    if not 2 <= keep <= count:
        raise ValueError(f"keep must be between 2 and {count}, not {keep}")
    share = keep / count
    end = -_NORMAL.inv_cdf(share / 2)
    outside = math.sqrt(1 + 2 * end * _NORMAL.pdf(end) / share)
    return outside * (1 - 0.75 / math.sqrt(count * keep))


def squared_deviations(rewards: Sequence[float]) -> float:
    """The sum of the squared deviations from the mean; exactly 0 for rewards that are all equal,
    or none, whatever rounding does to their mean."""
    shifted = [reward - rewards[0] for reward in rewards]
    mean = math.fsum(shifted) / max(1, len(shifted))
    return math.dist(shifted, [mean] * len(shifted)) ** 2
