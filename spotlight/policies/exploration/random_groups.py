"""What the choice of seeds is worth, by the rewards of seeds that nobody chose.

A random group has as many seeds as are kept of a prompt group, which nobody previews, and nobody
trains on. It is denoised beside training as the samples of the same iteration were: with the same
weights and steps, and for the same prompt. So the ratio of the two contrasts says what exploration
has gained, and nothing else. Probes, which are seeds drawn at random as well, tell the same for
nothing.

Pure.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import NamedTuple

from spotlight.policies.exploration.contrast import squared_deviations
from spotlight.policies.exploration.planners import SeedChoice, derived_seed

SHARE = 0.04
"""Random groups that do not wait for idle time cost this share of the previews' denoising steps at
most, but for the first one."""


class Contrasts(NamedTuple):
    """Root mean squares over groups of random seeds, and of the kept seeds beside them."""

    groups: int
    kept: float
    at_random: float


@dataclass
class RandomContrast:
    """What is found out beside the training of one iteration."""

    keep: int
    """How many seeds of a group are kept."""
    kept: Mapping[int, Sequence[float]]
    """The rewards of the samples, by prompt group."""
    probes: Mapping[int, Sequence[float]]
    """The rewards of probes, by prompt group."""
    of_any_prompt: bool
    """Whether exploration chose the prompts as well: then a prompt that is drawn at random is
    compared with all that are trained on."""
    rewards: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Those of random seeds, by prompt group."""

    def contrasts(self) -> Contrasts | None:
        """As far as is known; None without two random seeds of a prompt group.

        Groups that lack seeds count as well: n - 1 divides their squared deviations, so that
        (K - 1) / K of it is expected of K seeds, however many there are.
        """
        beside = {group: _square(rewards) for group, rewards in self.kept.items()}
        everywhere = fmean(beside.values()) if beside else math.nan
        pairs = [
            (
                everywhere if self.of_any_prompt else beside[group],
                variance(rewards) * (self.keep - 1) / self.keep,
            )
            for found in (self.rewards, self.probes)
            for group, rewards in sorted(found.items())
            if len(rewards) > 1 and (self.of_any_prompt or group in beside)
        ]
        if not pairs or not beside:
            return None
        kept, at_random = (math.sqrt(fmean(each)) for each in zip(*pairs, strict=True))
        return Contrasts(len(pairs), kept, at_random)


def _square(rewards: Sequence[float]) -> float:
    return squared_deviations(rewards) / max(1, len(rewards))


def draw_groups(
    seed: int, iteration: int, groups: Iterable[int], wanted: int, probed: Collection[int]
) -> list[int]:
    """The prompt groups of which random seeds are denoised; those that are probed come last."""
    drawn = sorted(groups)
    random.Random(derived_seed(seed, iteration, "random groups")).shuffle(drawn)
    return sorted(drawn, key=lambda group: group in probed)[:wanted]


def random_seeds(seed: int, iteration: int, groups: int, keep: int) -> list[SeedChoice]:
    """As many seeds as are kept of each prompt group; none of them is ever a candidate."""
    return [
        SeedChoice(
            tuple(derived_seed(seed, iteration, "random", group, each) for each in range(keep)),
            (None,) * keep,
        )
        for group in range(groups)
    ]


class Credit:
    """When a random group need not wait for idle time: exploration may take all that there is.

    Args:
        group_steps: denoising steps that one costs.
        saved: what was left before; None at first, when one is due.
    """

    def __init__(self, group_steps: int, saved: float | None = None) -> None:
        self._group_steps = group_steps
        self.left = saved
        """Steps that may be taken before others; None until the first group was asked for."""

    @property
    def is_due(self) -> bool:
        """Whether one group may go before previews."""
        return self.left is None or self.left >= self._group_steps

    def iteration_over(self, asked: int, preview_steps: int) -> None:
        """So many groups were asked for before others, or were measured in idle time; and so many
        steps were taken for previews."""
        if self.left is None and not asked:
            return
        before = self._group_steps if self.left is None else self.left
        left = max(0.0, before - asked * self._group_steps) + SHARE * preview_steps
        self.left = min(left, float(self._group_steps))
