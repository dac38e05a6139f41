"""Estimates of the spread of each prompt's rewards, over iterations.

Evidence is a pair of sums, which add up and fade: degrees of freedom, and squared deviations. The
variance of a prompt's rewards is believed to be InvGamma(count / 2, total / 2), by its own evidence
and a prior, which has the more pseudo-counts the more alike prompts are (`Population`). The policy
moves, so what was learnt fades when its prompt, or category, is met again (SuperFlow, arXiv
2512.17951).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spotlight.policies.exploration.contrast import expected_contrast, squared_deviations
from spotlight.types import Record

_LEAST_RELIABILITY = 0.1

_FARTHEST = -30.0
"""Standard errors below 0 beyond which the tail of a normal distribution is not told apart."""


class Population(Record, frozen=True):
    """How alike prompts are, as sums over visits to prompts, which add up and fade: what many
    prompts tell about one that is hardly known (empirical Bayes).

    Every visit to a prompt gives an estimate of its parameter, the variance of its rewards, and the
    sampling variance of that estimate. Prompts differ by the variance of the estimates less their
    mean sampling variance: the method of moments for random effects (DerSimonian and Laird 1986;
    Morris 1983 on empirical Bayes). Where that is little, a prompt's own few scores are mostly
    noise, and what is believed of it should stay near the mean of all.
    """

    visits: float = 0.0
    estimates: float = 0.0
    squares: float = 0.0
    """The squares of the estimates."""
    noise: float = 0.0
    """Sampling variances of the estimates, as they were found: a few may be below 0."""
    assumed: float = 0.0
    """The same if rewards are distributed as belief assumes."""

    def __add__(self, other: Population) -> Population:
        return Population(
            self.visits + other.visits,
            self.estimates + other.estimates,
            self.squares + other.squares,
            self.noise + other.noise,
            self.assumed + other.assumed,
        )

    def __sub__(self, other: Population) -> Population:
        return self + other * -1

    def __mul__(self, factor: float) -> Population:
        return Population(
            self.visits * factor,
            self.estimates * factor,
            self.squares * factor,
            self.noise * factor,
            self.assumed * factor,
        )

    def at_most(self, visits: float) -> Population:
        """The same mean, told by no more than so many visits. With v of them the spread seems to be
        larger by v / (v - 1): few visits say less of how alike prompts are.
        """
        return self * (visits / self.visits) if self.visits > visits else self

    def mean(self) -> float:
        """Of the prompts' parameters; at least one visit is needed."""
        return self.estimates / self.visits

    def variance(self) -> float:
        """Of the prompts' parameters, as it is expected, since it cannot be below 0: few visits, or
        noisy ones, do not show that prompts are alike.

        With n visits a variance has the standard error sqrt(2 / n) times itself, so what is left
        of it without the noise is taken as normally distributed around what was found, above 0.
        """
        noise = max(0.0, self.noise / self.visits)
        total = noise
        if self.visits > 1:
            deviations = self.squares - self.estimates**2 / self.visits
            total = max(0.0, deviations / (self.visits - 1))
        error = math.sqrt(2 / self.visits) * max(total, noise)
        return _mean_above_0(total - noise, error)

    def reliability(self) -> float:
        """What a score counts, in [0.1, 1]: less than 1 where estimates are noisier than they would
        be if rewards were distributed as belief assumes."""
        if self.noise <= 0:
            return 1.0
        return min(1.0, max(_LEAST_RELIABILITY, self.assumed / self.noise))


def visit(estimate: float, noise: float = 0.0, assumed: float = 0.0) -> Population:
    """One visit that gave an estimate with these sampling variances."""
    return Population(1.0, estimate, estimate * estimate, noise, assumed)


def _mean_above_0(mean: float, error: float) -> float:
    """The mean of that part of a normal distribution which is above 0."""
    if error <= 0:
        return max(0.0, mean)
    place = max(_FARTHEST, mean / error)
    density = math.exp(-place * place / 2) / math.sqrt(2 * math.pi)
    return error * (place + 2 * density / math.erfc(-place / math.sqrt(2)))


FADING = 0.3
"""What is left of evidence when its prompt is met again."""

POPULATION_FADING = 0.9
"""The same of what a category's prompts have in common, which changes more slowly."""

NEW = 24.0
"""Scores that a group needs before the next one is as likely to be like them as to be a new one. It
was chosen on tables of real rewards, other ones than the benchmark shows, where 16 did as well."""

_LEAST_DIFFERING = 0.002
"""The least that the variances of prompts' rewards differ, as the squared coefficient of variation:
a prior of 1,000 counts is as good as certain."""

_LEAST_VARIANCE = 1e-100
"""The least variance by whose square something can be divided: below it rewards are as good as
equal."""

_LUCK = 0.6
"""The exponent with which luck is lost, in simulations of normal rewards whose spread is known; of
a spread that the same scores have told, less is luck."""

_LEAST_COUNTS = 1.5
"""The counts below which the mean of a standard deviation soon has no bound; it is 2.7 times
`parameter` there."""


class Evidence(Record, frozen=True):
    """Two sums over scored candidates; see the module's docstring."""

    count: float = 0.0
    """The degrees of freedom."""
    total: float = 0.0
    """The squared deviations."""

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.count + other.count, self.total + other.total)

    def __mul__(self, factor: float) -> Evidence:
        return Evidence(self.count * factor, self.total * factor)


class Knowledge(Record, frozen=True):
    """What iterations so far taught: plain numbers by prompt and by category, for the caller to
    keep."""

    prompts: Mapping[str, Evidence] = {}
    categories: Mapping[str, Population] = {}

    def after(self, learnt: Knowledge) -> Knowledge:
        """With what an iteration taught since."""
        return Knowledge(
            {**self.prompts, **learnt.prompts}, {**self.categories, **learnt.categories}
        )


class Standing(Record, frozen=True):
    """What a group has by now."""

    scored: Evidence
    contrast: float
    """The contrast of the best of those that are scored; 0 if they are fewer than are kept."""
    again: float
    """What one more is expected to add to it, if it is like any of those that are scored."""
    live: int
    """Candidates that are scored or awaited."""


Limits = tuple[float, float]
"""The least and the greatest valid value of a reward, both included."""

UNLIMITED: Limits = (-1e70, 1e70)
"""Any value whose fourth power can be summed."""


class ContinuousRewards:
    """What scores tell of a prompt, and what one more candidate is worth. Rewards are taken as
    normally distributed within a prompt, as far as limits allow.

    Args:
        limits: of each reward of a candidate.

    Raises `ValueError` without limits, and for limits that are no interval.
    """

    ignorance = Population()
    """What is known of all prompts before anything is scored."""

    def __init__(self, *limits: Limits) -> None:
        if not limits or not all(
            UNLIMITED[0] <= low < high <= UNLIMITED[1] for low, high in limits
        ):
            raise ValueError(
                f"every reward needs limits within {UNLIMITED}, the lower first, not {limits}"
            )
        self.limits: Sequence[Limits] = limits
        """The limits of each reward of a candidate."""

    def problem_with(self, rewards: Sequence[float]) -> str:
        """Why these cannot be the rewards of a candidate; empty if they can."""
        if len(rewards) != len(self.limits):
            return f"{len(rewards)} rewards, but {len(self.limits)} are declared"
        for reward, (low, high) in zip(rewards, self.limits, strict=True):
            if not low <= reward <= high:  # true of NaN as well
                return f"a reward of {reward} is outside [{low:g}, {high:g}]"
        return ""

    def evidence(self, rewards: Sequence[float]) -> Evidence:
        """What the rewards of one group tell of its prompt."""
        return Evidence(max(0, len(rewards) - 1), squared_deviations(rewards))

    def visit(self, rewards: Sequence[float]) -> Population:
        """What the rewards of one group tell of all prompts; nothing if they are fewer than four.
        With s^2 comes what is left of its square without the unbiased estimate of sigma^4, which
        holds for rewards of any distribution (from h-statistics); normal ones would have
        2 sigma^4 / (n - 1)."""
        count = len(rewards)
        if count < 4:
            return Population()
        squares = squared_deviations(rewards)
        mean = math.fsum(rewards) / count
        fourths = math.fsum(((reward - mean) ** 2) ** 2 for reward in rewards)
        variance = squares / (count - 1)
        pairs = count * (count - 1)
        square = (pairs - 2 * count + 3) * squares * squares - pairs * fourths
        square /= pairs * (count - 2) * (count - 3)
        return visit(variance, variance * variance - square, 2 * square / (count - 1))

    def prior(self, population: Population) -> Evidence:
        """The evidence that stands for being one of these prompts.

        For variances that are log-normal, with the squared coefficient of variation v: their
        logarithms have the variance log(1 + v), which is that of an inverse gamma distribution with
        d counts where trigamma(d / 2) is as much (Smyth 2004); and it stands at the harmonic mean,
        as that distribution does, not at the arithmetic one, which is 1 + v times as much and of
        which most prompts fall short.
        """
        mean = population.mean() if population.visits > 0 else 0.0
        if mean < _LEAST_VARIANCE:
            return Evidence()
        differing = max(_LEAST_DIFFERING, population.variance() / mean**2)
        spread = math.log1p(differing)
        counts = (1 + math.sqrt(1 + 2 * spread)) / spread  # of trigamma(x) ~ 1 / x + 1 / (2 x^2)
        return Evidence(counts, counts * mean / (1 + differing))

    def parameter(self, belief: Evidence) -> float:
        """The standard deviation that is expected; 0 while nothing is known, and if rewards never
        differed."""
        return math.sqrt(belief.total / belief.count) if belief.count > 0 else 0.0

    def first_contrast(self, belief: Evidence, keep: int, full: float) -> float:
        """The contrast that the first `keep` candidates of a prompt are expected to have:
        E[s] sqrt((K - 1) / K) c4(K), the mean of a normal sample, and less where `full` is near;
        c4(K) is about (4 K - 4) / (4 K - 3).

        The mean of a standard deviation is above `parameter`, the root of the harmonic mean of the
        variance, and the more so the less is known: with d counts by the factor
        sqrt(d / 2) gamma((d - 1) / 2) / gamma(d / 2), that of an inverse gamma distribution.
        """
        counts = max(_LEAST_COUNTS, belief.count)
        gammas = math.lgamma((counts - 1) / 2) - math.lgamma(counts / 2)
        mean = self.parameter(belief) * math.sqrt(counts / 2) * math.exp(gammas)
        normal = mean * math.sqrt((keep - 1) / keep) * (4 * keep - 4) / (4 * keep - 3)
        return _below(full, normal)

    def gain(self, parameter: float, group: Standing, keep: int, full: float) -> float:
        """The contrast, at least 0, that one more candidate is expected to add to a group of at
        least `keep` live ones. `full` is the largest contrast that there is.

        The next score is one like those of the group, or a new one from a normal distribution: n to
        `NEW` (a Dirichlet process).

        With new ones, n candidates are expected to have the contrast s g(n, K), and less where
        `full` is near. A group that has less than that was unlucky, one that has more was lucky,
        and of luck (k / n)^0.6 is left when k candidates have become n.
        """
        if full <= 0:
            return 0.0

        def expected(live: int) -> float:
            return _below(full, parameter * expected_contrast(live, keep))

        now, then = expected(group.live), expected(group.live + 1)
        scored = round(group.scored.count) + 1
        if scored < keep:
            return max(0.0, then - now)
        luck = group.contrast - expected(scored)
        now += luck * math.pow(scored / group.live, _LUCK)
        then += luck * math.pow(scored / (group.live + 1), _LUCK)
        again = group.again * (scored / group.live) ** 2
        return (NEW * max(0.0, then - now) + scored * again) / (NEW + scored)


def _below(full: float, normal: float) -> float:
    """A contrast that would be `normal` if there were no largest one."""
    if full <= 0:
        return 0.0
    share = normal / full
    return normal / math.sqrt(math.hypot(1.0, share * share))
