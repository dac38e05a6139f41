"""What it is worth to choose among previews, estimated from the previews of the run itself.

What a sample teaches is taken to grow with the variance of the rewards of its prompt group. The K
of nK previews that vary most have c(n) times the variance of K random ones. How c grows depends on
the shape of the rewards and a little on K: with K = 4, c(4) and c(8) are 1.33 and 1.33 where half
of the images pass a test, 1.9 and 2.2 for OCR from solved to hopeless, 3.0 and 3.9 for the OCR
example, and 3.4 and 4.8 for normally distributed rewards. So a run resamples its own.

The mean over all subsets of a group's rewards is free of bias, whatever their distribution; so the
rewards of a group are divided at random into subsets, of each size up to the whole group, and the
best of each subset are taken. What is kept are sums by the range of n, which add up, and fade. Only
a planner that gives more previews to groups that were unlucky makes random rewards seem to vary
more than they do, and c is too low by up to a tenth then.

Pure. What it costs is bounded, however many previews there are (`MOST_SCORES`).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise, zip_longest
from operator import add
from statistics import fmean

from spotlight.policies.exploration.contrast import best_contrast, squared_deviations
from spotlight.policies.exploration.fidelity import Totals
from spotlight.types import Record

EDGES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)
"""Previews for each sample. Between two of them c grows as the logarithm; more than the last ones
are worth no more."""
TELLING = EDGES[1]
"""The previews for each sample that tell in a few iterations what a choice is worth."""
ORDERS = 4
"""How often the rewards of a group are divided at random, where they are few."""
MOST_SCORES = 8192
"""Rewards in all these orders together, unless that is not enough for one of each group."""
ENOUGH = 64.0
"""Previews that tell as much as is asked for; of fewer a guess takes the rest."""
USUAL = 0.5
"""The growth with ln n that is guessed before anything is known: about 1.5 for graded rewards, 0.2
where half of the images pass. A guess promises little."""
SLOWER = 0.9
"""How much of its growth with ln n is left, at most, in a range that was not seen, of that in the
range before. Rewards have bounds, so growth ends. With twice as many previews as were seen this is
at most 3 % too much and 15 % too little (`python -m benchmarks.choice_worth`): too little of
rewards without bounds, or with rare exceptions."""


class Growth(Totals, frozen=True):
    """How the variance of the best grows in one range of previews for each sample: sums over prompt
    groups."""

    scores: float = 0.0
    """The number of previews of groups that reach through the range; a part of these where they
    reach through a part."""
    looked: float = 0.0
    """The variances of random ones, times the difference of ln n that was looked through."""
    gained: float = 0.0
    """The growth of the variances of the best, summed over groups."""


class ChoiceWorth(Record, frozen=True):
    """What the previews of a run have told; see the module's docstring."""

    ranges: tuple[Growth, ...] = ()
    """The sums of each range between two successive `EDGES`, as far as previews reached."""

    def __add__(self, other: ChoiceWorth) -> ChoiceWorth:
        pairs = zip_longest(self.ranges, other.ranges, fillvalue=Growth())
        return ChoiceWorth(tuple(one + another for one, another in pairs))

    def faded(self) -> ChoiceWorth:
        """As an iteration later."""
        return ChoiceWorth(tuple(one.faded() for one in self.ranges))

    @property
    def is_known(self) -> bool:
        """Whether previews have told enough, so that no guess is left in what they reach."""
        return bool(self.ranges) and self.ranges[0].scores >= ENOUGH

    def curve(self) -> Callable[[float], float]:
        """c(n): how many times as much as a random sample one teaches that is chosen of n previews,
        for any number n; 1 where there is no choice.
        """
        worths = [1.0]
        for growth, (low, high) in zip(self._growths(), pairwise(EDGES), strict=True):
            worths.append(worths[-1] + growth * math.log(high / low))

        def worth(previews_per_sample: float) -> float:
            previews = min(max(EDGES[0], previews_per_sample), EDGES[-1])
            place = min(bisect_right(EDGES, previews), len(EDGES) - 1)
            low, high = EDGES[place - 1], EDGES[place]
            share = math.log(previews / low) / math.log(high / low)
            return worths[place - 1] + share * (worths[place] - worths[place - 1])

        return worth

    def _growths(self) -> list[float]:
        """With ln n, by range: what was seen, and as far as too little was, what follows from the
        ranges before."""
        found: list[float] = []
        for _, seen in zip_longest(EDGES[1:], self.ranges, fillvalue=Growth()):
            guess = _next(found)
            sure = min(1.0, seen.scores / ENOUGH)
            own = max(0.0, seen.gained / seen.looked) if seen.looked > 0 else guess
            found.append(sure * own + (1 - sure) * guess)
        return found


def _next(growths: Sequence[float]) -> float:
    """What to expect after these: growth goes on slowing down as it did, and a little at least."""
    if not growths:
        return USUAL
    slower = SLOWER
    if len(growths) > 1 and growths[-2] > 0:
        slower = min(slower, growths[-1] / growths[-2])
    return slower * growths[-1]


def choice_worth(groups: Sequence[Sequence[float]], keep: int, rng: random.Random) -> ChoiceWorth:
    """What the rewards of an iteration's previews tell; nothing if they leave no choice, or are all
    equal in every group. Where a planner gave groups unequally many, their subsets are so as well:
    what is told is what it would have kept with fewer previews in all.

    Args:
        groups: rewards of each prompt group; one that is not whole does not count.
        keep: so many of each are kept (K).
    """
    whole = [rewards for rewards in groups if len(rewards) >= keep]
    varied = [rewards for rewards in whole if min(rewards) < max(rewards)]
    each = sum(map(len, whole)) / (keep * max(1, len(whole)))
    if not varied or each <= 1:
        return ChoiceWorth()
    edges = [*(edge for edge in EDGES[1:-1] if edge < each), min(each, EDGES[-1])]
    scores = sum(map(len, varied))
    orders = max(1, min(ORDERS, int(MOST_SCORES / (scores * edges[-1] / each))))
    at_random, best = 0.0, [0.0] * len(edges)
    for rewards in varied:
        at_random += squared_deviations(rewards) / (len(rewards) - 1) * (keep - 1) / keep
        sizes = [max(keep, round(len(rewards) * edge / each)) for edge in edges]
        best = [*map(add, best, _best(rewards, sizes, keep, orders, rng))]
    ranges = []
    steps = zip(
        pairwise([1.0, *edges]), pairwise(EDGES), pairwise([at_random, *best]), strict=False
    )
    for (start, end), (low, high), (smaller, larger) in steps:
        width = math.log(end / start)
        reached = width / math.log(high / low)
        ranges.append(Growth(scores * reached, at_random * width, larger - smaller))
    return ChoiceWorth(tuple(ranges))


def _best(
    rewards: Sequence[float], sizes: Sequence[int], keep: int, orders: int, rng: random.Random
) -> list[float]:
    """The mean variance of the best of subsets of each size, into which rewards are divided in so
    many random orders."""
    found = [0.0] * len(sizes)
    for _ in range(orders):
        drawn = rng.sample(rewards, sizes[-1])
        for place, size in enumerate(sizes):
            subsets = [drawn[end - size : end] for end in range(size, len(drawn) + 1, size)]
            squares = [best_contrast(sorted(subset), keep) ** 2 for subset in subsets]
            found[place] += fmean(squares) / orders
    return found
