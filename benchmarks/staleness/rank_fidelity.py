"""How well one scoring of candidates stands for another: do the same seeds come out on top?

Two scorings of the same seeds of the same prompts are compared prompt by prompt, because seeds are
only ever chosen among those of one prompt; then over prompts. Intervals are bootstrapped over
prompts: these are drawn independently, while the seeds of one prompt share it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spotlight.policies.exploration.fidelity import agreement
from spotlight.policies.exploration.planners import max_variance_subset
from spotlight.policies.exploration.ranking import spearman, spread
from spotlight.types import Record

RESAMPLES = 1000
"""Resamples of the prompts, for one interval."""
RANDOM_SUBSETS = 64
"""Subsets that are drawn of a prompt's seeds, for what choosing without any score would give."""

T = TypeVar("T")

Interval = tuple[float, float]


class Estimate(Record, frozen=True):
    """A figure over prompts with its 95 % bootstrap interval; None where there are too few."""

    value: float | None
    interval: Interval | None


class RankFidelity(Record, frozen=True):
    """How well the rewards of one scoring rank seeds as those of another do.

    The correlations are over prompts whose rewards vary in both scorings; the others are counted.
    `kept_*` are means over all prompts of the standard deviation, in the other scoring's rewards,
    of the K seeds of a prompt that are kept.
    """

    prompts: int
    constant: int
    """Prompts where all seeds have one reward in either scoring: nothing can be ranked."""
    spearman_median: Estimate
    spearman_mean: Estimate
    kendall_median: Estimate
    kendall_mean: Estimate
    kept_by_it: float
    """Chosen by the scoring that is judged."""
    kept_by_oracle: float
    """Chosen by the other scoring itself: the most that is possible."""
    kept_at_random: float
    """Mean over random choices."""
    realised_over_oracle: Estimate
    """`kept_by_it / kept_by_oracle`."""
    random_over_oracle: float | None
    """`kept_at_random / kept_by_oracle`."""


@dataclass(frozen=True)
class Contrast:
    """Standard deviations of K kept rewards of one prompt; see `RankFidelity`."""

    realised: float
    oracle: float
    at_random: float


def rank_fidelity(
    judged: Sequence[Sequence[float]],
    reference: Sequence[Sequence[float]],
    *,
    keep: int,
    seeds: Sequence[Sequence[int]],
    rng: random.Random,
) -> RankFidelity:
    """Compare two scorings of the same seeds, each a row of rewards per prompt.

    `keep` is K, as the max-variance subset keeps them; `seeds`, in the rows' order, break its ties.
    `rng` draws random choices and resamples.

    Raises `ValueError` when rows differ in number or length, there is none, or `keep` does not fit.
    """
    if not judged:
        raise ValueError("there are no prompts to compare")
    rows = list(zip(judged, reference, seeds, strict=True))
    correlations = [
        (rho, tau)
        for mine, other, _ in rows
        if (rho := spearman(mine, other)) is not None
        and (tau := kendall_tau_b(mine, other)) is not None
    ]
    rhos = [rho for rho, _ in correlations]
    taus = [tau for _, tau in correlations]
    contrasts = [kept_contrast(mine, other, keep, which, rng) for mine, other, which in rows]
    oracle = statistics.fmean(contrast.oracle for contrast in contrasts)
    at_random = statistics.fmean(contrast.at_random for contrast in contrasts)
    return RankFidelity(
        prompts=len(rows),
        constant=len(rows) - len(correlations),
        spearman_median=estimate(rhos, statistics.median, rng),
        spearman_mean=estimate(rhos, statistics.fmean, rng),
        kendall_median=estimate(taus, statistics.median, rng),
        kendall_mean=estimate(taus, statistics.fmean, rng),
        kept_by_it=statistics.fmean(contrast.realised for contrast in contrasts),
        kept_by_oracle=oracle,
        kept_at_random=at_random,
        realised_over_oracle=estimate(
            [contrast for contrast in contrasts if contrast.oracle > 0], realised_over_oracle, rng
        ),
        random_over_oracle=at_random / oracle if oracle > 0 else None,
    )


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's rank correlation, corrected for ties (see `fidelity.Agreement`); None if either
    list does not vary.

    Raises `ValueError` when the lists differ in length.
    """
    if len(first) != len(second):
        raise ValueError(f"rankings of {len(first)} and {len(second)} values cannot be compared")
    return agreement([list(zip(first, second, strict=True))]).tau


def kept_contrast(
    judged: Sequence[float],
    reference: Sequence[float],
    keep: int,
    seeds: Sequence[int],
    rng: random.Random,
) -> Contrast:
    """Standard deviations, in `reference` rewards, of the `keep` seeds that vary most in `judged`
    rewards, of those that vary most in `reference` rewards, and of random ones (a mean).

    Raises `ValueError` as `max_variance_subset` does.
    """

    def spread_of(indices: Sequence[int]) -> float:
        return spread([reference[index] for index in indices])

    everything = range(len(reference))
    drawn = [rng.sample(everything, keep) for _ in range(RANDOM_SUBSETS)]
    return Contrast(
        realised=spread_of(max_variance_subset(judged, keep, tie_break=seeds)),
        oracle=spread_of(max_variance_subset(reference, keep, tie_break=seeds)),
        at_random=statistics.fmean(spread_of(indices) for indices in drawn),
    )


def realised_over_oracle(contrasts: Sequence[Contrast]) -> float:
    """What was kept over what could have been, as a ratio of sums: prompts with much contrast
    count for more, as they do in training.

    Raises `ZeroDivisionError` when no prompt has any contrast.
    """
    return sum(contrast.realised for contrast in contrasts) / sum(
        contrast.oracle for contrast in contrasts
    )


def estimate(
    values: Sequence[T], statistic: Callable[[Sequence[T]], float], rng: random.Random
) -> Estimate:
    """The statistic of one value per prompt, and its interval from two values on."""
    if not values:
        return Estimate(None, None)
    interval = bootstrap_interval(values, statistic, rng) if len(values) > 1 else None
    return Estimate(statistic(values), interval)


def bootstrap_interval(
    values: Sequence[T],
    statistic: Callable[[Sequence[T]], float],
    rng: random.Random,
    *,
    confidence: float = 0.95,
) -> Interval:
    """Percentile bootstrap: the middle part of the statistic over resamples with replacement.

    Efron, Annals of Statistics 7 (1979) 1. Raises `ValueError` without values.
    """
    if not values:
        raise ValueError("an interval needs at least one value")
    found = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    outside = round(RESAMPLES * (1 - confidence) / 2)
    return found[outside], found[-1 - outside]
