"""Whether exploration pays, according to probes, and how much exploration follows from that.

A probe is a candidate that was previewed and is regenerated whether or not it was chosen: those
that are chosen are the extremes and agree too well, those that are not too badly. Only orders
within a prompt group count, as only they decide which seeds are kept: of two probes of a group, the
fresh rewards stand as the previews did (concordant), or the other way round (discordant), or one of
them ties.

Pure. Invariant: what is believed depends on counts only, not on the order of groups or probes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import add
from statistics import fmean, mean, variance
from typing import Self

from msgspec.structs import astuple

from spotlight.policies.exploration.contrast import squared_deviations
from spotlight.types import Record

FADING = 0.95
"""What an iteration leaves of what was seen before it: the policy moves. So exploration that is off
goes on again when too little is left to say that it does not pay."""
ENOUGH = 20.0
"""Pairs without which nothing is concluded."""
DOUBT = 1.64
"""Standard errors below which a rank agreement counts as too low: one-sided, 5 %."""
WORTHLESS = 0.2
POOR = 0.35
"""Rank agreements. Of 96 normally distributed candidates, 24 that are kept for previews that agree
with their rewards by 0.35 have a contrast that is larger by a quarter; by 0.2, by a tenth. With
four kept of 16, and noise that makes real rewards agree so badly, it is 19 to 52 % and 3 to 20 % on
the eleven tables of `benchmarks/reward_tables`, and 14 and 4 % where half of the images pass."""
ENOUGH_ITERATIONS = 6.0
"""Iterations without which nothing is concluded from contrast."""
WORTHLESS_GAIN = 0.14
POOR_GAIN = 0.33
"""Shares of the promised gain. Such agreements as above bring as much of it where rewards are
normally distributed; on the tables 0.04 to 0.25 and 0.24 to 0.58, as rewards with few levels bring
more. So what is in doubt is explored."""
SUBSETS = 64
"""Drawn of each group, where groups are few."""
MOST_SUBSETS = 2048
"""Drawn in all, unless there are more groups: one is drawn of each."""
NO_PROMISE = 0.05
"""A gain that is smaller, in contrast, says nothing by whether it came."""

Pair = tuple[float, float]
"""The preview reward and the fresh reward of one probe."""


class Totals(Record, frozen=True):
    """Numbers that add up, and fade."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(add, astuple(self), astuple(other)))

    def faded(self) -> Self:
        """As an iteration later."""
        return type(self)(*(FADING * total for total in astuple(self)))


class Agreement(Totals, frozen=True):
    """Counts of pairs of probes of one group, faded; they add up.

    Ties of the preview alone and of the fresh reward alone; pairs that tie in both say nothing.
    """

    concordant: float = 0.0
    discordant: float = 0.0
    preview_ties: float = 0.0
    fresh_ties: float = 0.0

    @property
    def pairs(self) -> float:
        """All that were counted."""
        return self.concordant + self.discordant + self.preview_ties + self.fresh_ties

    @property
    def tau(self) -> float | None:
        """Kendall's tau-b: (P - Q) / sqrt((P + Q + X) (P + Q + Y)) for P concordant and Q
        discordant pairs, and X and Y that tie in one alone (Biometrika 33 (1945) 239); None where
        all previews, or all fresh rewards, tie.
        """
        ordered = self.concordant + self.discordant
        scale = math.sqrt((ordered + self.preview_ties) * (ordered + self.fresh_ties))
        return (self.concordant - self.discordant) / scale if scale > 0 else None

    @property
    def correlation(self) -> float | None:
        """Pearson's correlation within a prompt that goes with `tau`; None where that is.

        It is sin(pi tau / 2) where rewards are normally distributed (Kruskal, JASA 53 (1958) 823),
        and tau itself where there are two of them. There it is in ties of one alone that the orders
        disagree, elsewhere in pairs that are discordant, so ties tell how near it is to either. The
        square of it is the share of a choice's gain that comes true; of rewards of which few pass,
        more does.
        """
        tau = self.tau
        if tau is None:
            return None
        ties = (self.preview_ties + self.fresh_ties) / 2
        tied = ties / (ties + self.discordant) if ties > 0 else 0.0
        return tied * tau + (1 - tied) * math.sin(math.pi * tau / 2)

    @property
    def tau_at_most(self) -> float:
        """What tau is below, but for one chance in twenty; pairs are taken as independent, as they
        nearly are with four probes of a prompt or fewer (with sixteen it is one in five). Rewards
        of which one side never varies agree by nothing.
        """
        if self.pairs == 0:
            return 1.0
        tau = self.tau or 0.0
        return min(1.0, tau + DOUBT * math.sqrt(max(0.0, 1 - tau * tau) / self.pairs))


class Gain(Totals, frozen=True):
    """Contrast of the seeds that were kept, summed over iterations and faded; they add up."""

    iterations: float = 0.0
    unexplored: float = 0.0
    """The contrast of as many of the previews, taken at random."""
    promised: float = 0.0
    """The contrast of their previews."""
    realised: float = 0.0
    """The contrast of their fresh rewards."""

    @property
    def realised_share(self) -> float | None:
        """Of the promised gain over seeds taken at random: 1 if fresh rewards contrast as previews
        did, 0 if no more than those of any seeds. None where next to nothing was promised.
        """
        promised = self.promised - self.unexplored
        if promised <= NO_PROMISE * self.unexplored:
            return None
        return (self.realised - self.unexplored) / promised


@dataclass(frozen=True)
class Probes:
    """Seeds of one prompt group, and their preview rewards."""

    seeds: tuple[int, ...]
    rewards: tuple[float, ...]


def agreement(groups: Iterable[Sequence[Pair]]) -> Agreement:
    """Of the probes of each group."""
    found = [0.0, 0.0, 0.0, 0.0]
    for group in groups:
        for (preview, fresh), (other_preview, other_fresh) in combinations(group, 2):
            if preview == other_preview:
                if fresh != other_fresh:
                    found[2] += 1
            elif fresh == other_fresh:
                found[3] += 1
            else:
                found[0 if (preview > other_preview) == (fresh > other_fresh) else 1] += 1
    return Agreement(*found)


def exploration_share(known: Agreement, gain: Gain) -> float:
    """How much of the previews of the next iteration are worth making: 1, 0.5 or 0. The worse of
    what probes and what the contrast of the kept seeds say.
    """
    worthless = poor = False
    if known.pairs >= ENOUGH:
        worthless, poor = known.tau_at_most < WORTHLESS, known.tau_at_most < POOR
    realised = gain.realised_share if gain.iterations >= ENOUGH_ITERATIONS else None
    if realised is not None:
        worthless, poor = worthless or realised < WORTHLESS_GAIN, poor or realised < POOR_GAIN
    if worthless:
        return 0.0
    return 0.5 if poor else 1.0


def contrast_at_random(scored: Sequence[Sequence[float]], keep: int, rng: random.Random) -> float:
    """The mean contrast of `keep` rewards of a group when any are taken, estimated from random
    subsets, equally many of each group with so many rewards; 0 if there is none. It is what
    selection is compared with.
    """
    able = [rewards for rewards in scored if len(rewards) >= keep]
    if not able:
        return 0.0
    draws = max(1, min(SUBSETS, MOST_SUBSETS // len(able)))
    squares = [
        squared_deviations(rng.sample(rewards, keep)) for rewards in able for _ in range(draws)
    ]
    return fmean(math.sqrt(square / keep) for square in squares)


def contrast_of_any(probes: Sequence[Sequence[float]], keep: int) -> float | None:
    """The contrast to expect of `keep` seeds of a group that are taken at random, in the rewards of
    their rollouts: the root of the expected square, whatever the distribution. None unless a group
    has two probes.

    Args:
        probes: fresh rewards, for each group that has any.
    """
    variances = [variance(rewards) for rewards in probes if len(rewards) > 1]
    return math.sqrt(mean(variances) * (keep - 1) / keep) if variances else None


def draw_probes(scored: Sequence[dict[int, float]], count: int, rng: random.Random) -> list[Probes]:
    """Up to `count` of the previewed seeds of one group; none of the other groups, and none at all
    if no group has two.

    Args:
        scored: preview rewards by seed, for each group.
    """
    probes = [Probes((), ()) for _ in scored]
    able = [group for group, rewards in enumerate(scored) if len(rewards) > 1]
    if able and count > 1:
        group = rng.choice(able)
        previewed = sorted(scored[group])
        seeds = tuple(sorted(rng.sample(previewed, min(count, len(previewed)))))
        probes[group] = Probes(seeds, tuple(scored[group][seed] for seed in seeds))
    return probes
