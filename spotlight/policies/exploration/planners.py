"""Which candidates to preview while training runs, and which seeds to keep.

The seam is `ExplorationPlanner`: an anytime planner that is asked for small chunks, told every
score, and may be cut off at any moment. `UniformPlanner` gives every prompt the same number of
candidates; `bandit.BanditPlanner` gives more to those that gain most. Pure: seeds come from a hash,
scores are handed in.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from statistics import pstdev
from typing import Protocol

from spotlight.policies.exploration.reward_scales import (
    combined,
    each_reward,
    reward_scale,
)
from spotlight.policies.exploration.reward_spread import Knowledge


@dataclass(frozen=True)
class Candidate:
    """A (prompt, seed) pair that may be previewed."""

    group: int
    seed: int


@dataclass(frozen=True)
class SeedChoice:
    """The seeds of one prompt group that are trained on, each with its preview reward (None if it
    was not previewed)."""

    seeds: tuple[int, ...]
    preview_rewards: tuple[float | None, ...]

    @property
    def is_previewed(self) -> bool:
        """Whether all of its seeds are; False if it has none."""
        return bool(self.seeds) and None not in self.preview_rewards


class ExplorationPlanner(Protocol):
    """Decides the next candidates, and at any moment the choice so far."""

    def next_chunk(self, size: int) -> list[Candidate]:
        """Up to `size` candidates to preview next; empty when nothing more is worth previewing."""

    def record(self, candidate: Candidate, reward: float | Sequence[float]) -> None:
        """A preview was scored, with one number per reward."""

    def forget(self, candidate: Candidate) -> None:
        """A preview will not be scored."""

    def restrict(self, groups: Collection[int]) -> None:
        """Only these prompt groups are given candidates from now on."""

    def choose(self) -> list[SeedChoice]:
        """For every prompt group the seeds to keep, from what is scored so far."""

    def learnt(self) -> Knowledge:
        """What is known now of these prompts, for the next time."""


class UniformPlanner:
    """The same number of candidates for every prompt: seed by seed, round robin over the prompts.

    Args:
        job_seed: decides the candidates' seeds, together with the iteration, the group and the
            candidate's number.
        iteration: the iteration that is explored for.
        groups: prompt groups in it.
        keep: seeds to keep per group (K).
        candidates: most candidates per group (N).
        weights: of the rewards, which are summed as `reward_scales` describes.
        heat: how many candidates a prompt is given at a time; there are whole heats only.
    """

    def __init__(
        self,
        *,
        job_seed: int,
        iteration: int,
        groups: int,
        keep: int,
        candidates: int,
        weights: Sequence[float] = (1.0,),
        heat: int = 1,
    ) -> None:
        self._job_seed = job_seed
        self._iteration = iteration
        self._heat = heat
        self._groups = groups
        self._keep = keep
        self._candidates = candidates
        self._left = groups * (candidates // heat)
        """How many heats there may yet be."""
        self._issued = [0] * groups
        self._seeds: list[list[int]] = [[] for _ in range(groups)]
        """The seeds of each group's candidates, by their numbers, as far as they were asked for."""
        self._open: Sequence[int] = range(groups)
        self._turn = 0
        self._weights = weights
        self._rewards: list[dict[int, tuple[float, ...]]] = [{} for _ in range(groups)]

    def next_chunk(self, size: int) -> list[Candidate]:
        """See `ExplorationPlanner`; rounded up to whole heats."""
        heats = max(0, min(-(-size // self._heat), self._left))
        self._left -= heats
        return [candidate for _ in range(heats) for candidate in self._issue()]

    def record(self, candidate: Candidate, reward: float | Sequence[float]) -> None:
        """See `ExplorationPlanner`."""
        self._rewards[candidate.group][candidate.seed] = each_reward(reward)

    def forget(self, candidate: Candidate) -> None:
        """See `ExplorationPlanner`."""

    def restrict(self, groups: Collection[int]) -> None:
        """See `ExplorationPlanner`; together they may have all that is left for all groups."""
        self._open, self._turn = sorted(groups), 0

    def choose(self) -> list[SeedChoice]:
        """The max-variance subset of each group; groups that exploration did not fill are topped up
        with candidates that have no score. Several rewards are reported as their sum."""
        scale = reward_scale(([*group.values()] for group in self._rewards), self._weights)
        return [self._choose_group(group, scale) for group in range(self._groups)]

    def learnt(self) -> Knowledge:
        """Nothing: what is known changes nothing here."""
        return Knowledge()

    def _issue(self) -> list[Candidate]:
        """The next heat."""
        group = self._open[self._turn]
        self._turn = (self._turn + 1) % len(self._open)
        first = self._issued[group]
        self._issued[group] += self._heat
        numbers = range(first, self._issued[group])
        return [Candidate(group, self._seed(group, number)) for number in numbers]

    def _choose_group(self, group: int, scale: Sequence[float]) -> SeedChoice:
        # In the order of the candidates' numbers, so that the order of arrival changes nothing.
        known = self._rewards[group]
        most = max(self._candidates, self._issued[group])
        numbered = (self._seed(group, number) for number in range(most))
        scored = list(islice((seed for seed in numbered if seed in known), len(known)))
        rewards = [combined(known[seed], scale) for seed in scored]
        if len(scored) > self._keep:
            kept = self._select(rewards, scored)
            return SeedChoice(tuple(scored[i] for i in kept), tuple(rewards[i] for i in kept))
        missing = self._keep - len(scored)
        fresh = (self._seed(group, number) for number in range(most + self._keep))
        unscored = islice((seed for seed in fresh if seed not in known), missing)
        return SeedChoice((*scored, *unscored), (*rewards, *(None for _ in range(missing))))

    def _select(self, rewards: Sequence[float], seeds: Sequence[int]) -> list[int]:
        return max_variance_subset(rewards, self._keep, tie_break=seeds)

    def _seed(self, group: int, number: int) -> int:
        seeds = self._seeds[group]
        for each in range(len(seeds), number + 1):
            seeds.append(derived_seed(self._job_seed, self._iteration, group, each))
        return seeds[number]


class RandomPlanner(UniformPlanner):
    """Previews as `UniformPlanner` does and keeps K random seeds, whatever their rewards: the
    baseline that exploration is compared with.
    """

    def _select(self, rewards: Sequence[float], seeds: Sequence[int]) -> list[int]:
        def drawn(index: int) -> int:
            return derived_seed(self._job_seed, self._iteration, "random", seeds[index])

        return sorted(sorted(range(len(seeds)), key=drawn)[: self._keep])


def widest(choices: Sequence[SeedChoice], groups: int) -> list[SeedChoice]:
    """The same, with no seeds for all but so many groups: those whose preview rewards have the
    greatest standard deviation, the first of equals. Groups that lack previews come after those
    that do not, since not all of their samples were chosen.
    """

    def rank(group: int) -> tuple[bool, float, int]:
        choice = choices[group]
        known = [reward for reward in choice.preview_rewards if reward is not None]
        return not choice.is_previewed, -pstdev(known) if known else 1.0, group

    order = sorted(range(len(choices)), key=rank)
    taken = set(order[:groups])
    nothing = SeedChoice((), ())
    return [choice if group in taken else nothing for group, choice in enumerate(choices)]


def widest_beside(
    choices: Sequence[SeedChoice], groups: int, kept: Collection[int]
) -> list[SeedChoice]:
    """The same, with no seeds for all but so many groups: those that are kept, and the `widest` of
    the others."""
    nothing = SeedChoice((), ())
    others = [nothing if group in kept else choice for group, choice in enumerate(choices)]
    chosen = widest(others, groups - len(kept))
    return [choices[group] if group in kept else each for group, each in enumerate(chosen)]


def derived_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on all parts, the same on every machine."""
    text = "/".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def first_seeds(job_seed: int, iteration: int, groups: int, keep: int) -> list[SeedChoice]:
    """The choice without exploration: the first `keep` candidates of every group."""
    planner = UniformPlanner(
        job_seed=job_seed, iteration=iteration, groups=groups, keep=keep, candidates=keep
    )
    return planner.choose()


def chunk_size(outstanding: int, workers: int, micro_batch: int) -> int:
    """How many previews to add so that every worker has one batch in work and one waiting.

    Without any worker there is work for one: the next to join.
    """
    wanted = 2 * max(1, workers) * micro_batch
    return max(0, wanted - outstanding)


def draw_prompts(
    job_seed: int, iteration: int, available: int, wanted: int, *, sorts: bool = False
) -> list[int]:
    """Indices of the prompts of an iteration: passes through seeded permutations, so that all are
    met equally often.

    Args:
        sorts: whether passes over many prompts, too, are sorted, as earlier versions did. They are
            in another order then, and the first draw of a pass takes seconds for a million.
    """
    sorts = sorts or available <= _SORTED
    drawn = []
    for number in range(iteration * wanted, (iteration + 1) * wanted):
        epoch, offset = divmod(number, available)
        if sorts:
            drawn.append(_sorted_pass(job_seed, epoch, available)[offset])
        else:
            drawn.append(_permuted(offset, available, job_seed, epoch))
    return drawn


_SORTED = 4096
"""A pass over so few prompts is sorted by their hashes: 6 ms at most. Its order is that of every
run there ever was."""
_ROUNDS = 4


@lru_cache(maxsize=2)  # where one pass ends, another begins
def _sorted_pass(job_seed: int, epoch: int, length: int) -> tuple[int, ...]:
    # Whoever is first depends on all of them, so they are sorted once per pass, not per iteration.
    def drawn(index: int) -> int:
        return derived_seed(job_seed, "prompts", epoch, index)

    return tuple(sorted(range(length), key=drawn))


def _permuted(index: int, length: int, job_seed: int, epoch: int) -> int:
    """Where a seeded permutation of the numbers below `length` takes one of them, whatever happens
    to the others: a Feistel cipher over pairs of digits, walked on until it comes back into the
    range (J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
    """
    side = math.isqrt(length - 1) + 1
    while True:
        left, right = divmod(index, side)
        for turn in range(_ROUNDS):
            mixed = left + derived_seed(job_seed, "prompts", epoch, turn, right)
            left, right = right, mixed % side
        index = left * side + right
        if index < length:
            return index


_MASK = 2**64 - 1


def max_variance_subset(
    rewards: Sequence[float], keep: int, *, tie_break: Sequence[int] | random.Random
) -> list[int]:
    """Indices, ascending, of `keep` rewards with the largest variance, in O(N log N).

    Exactly optimal: arithmetic is exact, so the choice never depends on rounding, on the order in
    which candidates arrived, or on the machine. An optimum holds candidates of both ends by itself,
    so no least share of either end is enforced: it could only lower the variance.

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
