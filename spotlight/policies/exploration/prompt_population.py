"""How alike prompts are: what many prompts tell about one that is hardly known (empirical Bayes).

Every visit to a prompt gives an estimate of its parameter, the variance of its rewards, and the
sampling variance of that estimate. Prompts differ by the variance of the estimates less their mean
sampling variance: the method of moments for random effects (DerSimonian and Laird 1986; Morris 1983
on empirical Bayes). Where that is little, a prompt's own few scores are mostly noise, and what is
believed of it should stay near the mean of all.
"""

from __future__ import annotations

import math

from spotlight.types import Record

_LEAST_RELIABILITY = 0.1

_FARTHEST = -30.0
"""Standard errors below 0 beyond which the tail of a normal distribution is not told apart."""


class Population(Record, frozen=True):
    """Sums over visits to prompts, which add up and fade: plain numbers for the caller to keep."""

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
