"""The exploration planner that gives more candidates to the prompts that gain most by them.

Every prompt group of an iteration is an arm, and a pull is one candidate, so a chunk may be cut
anywhere. What is maximised is the sum over the groups of the contrast of the seeds kept.
An arm's gain is what one more candidate is expected to add, if its spread is the one that is
expected by what is believed of it; gains fall with every candidate, so to pull the greatest is best
for spreads that are known. Drawing the spread from belief instead (Thompson sampling) kept less,
and taking its upper bound no more: the first K candidates teach most of what there is to know.

Invariants:
- Every group that is trained on is given K candidates before any is given more, one by one over all
  of them: a cut at any moment leaves groups that are equally full.
- Of a pool of prompts, only those are given any that are open (`PromptPool`).
- After `restrict` only those groups are given any, and no other prompt of a pool is opened.
- No group is given more than `most`, nor all together more than groups x candidates.
- A group whose contrast is nearly the largest that its limits allow is given no more.
- A candidate whose score is awaited counts as taken, so that a chunk does not pile onto one group;
  one that is forgotten does not.
- Equal scores give equal decisions, in whatever order they came between two chunks.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice

from spotlight.policies.exploration.contrast import contrast_and_gain, largest_contrast
from spotlight.policies.exploration.planners import (
    Candidate,
    SeedChoice,
    UniformPlanner,
    derived_seed,
)
from spotlight.policies.exploration.reward_scales import combined, each_reward, reward_scale
from spotlight.policies.exploration.reward_spread import (
    FADING,
    POPULATION_FADING,
    ContinuousRewards,
    Evidence,
    Knowledge,
    Population,
    Standing,
)


@dataclass
class Arm:
    """A prompt group, of which a pull is one candidate, and what became of its candidates."""

    prompt: str
    category: str
    issued: int = 0
    """How many candidates were handed out."""
    awaited: set[int] = field(default_factory=set)
    """The seeds of those that have no score yet."""
    forgotten: set[int] = field(default_factory=set)
    """The seeds of those that will have none."""
    rewards: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """The rewards by seed, as recorded."""
    values: list[float] = field(default_factory=list)
    """The rewards of each candidate as one number, ascending."""
    evidence: Evidence = field(default_factory=Evidence)
    """What the `values` tell of the prompt."""
    told: Population = field(default_factory=Population)
    """What they told of all prompts of its category."""
    contrast: float = 0.0
    """The contrast of the best of them."""
    again: float = 0.0
    """What one more candidate would add, if its reward were any of the `values` again."""
    parameter: float = 0.0
    """The parameter that is expected by what is believed of the prompt."""


def values_of(arm: Arm, scale: Sequence[float]) -> list[float]:
    """The rewards of an arm, each as one number, ascending."""
    return sorted(combined(rewards, scale) for rewards in arm.rewards.values())


SATURATED = 0.96
"""The share of the largest possible contrast from which on a group is given no more: 0.48 for
rewards in [0, 1]."""

REVISED = 16
"""The gain of so many groups, in turn, is estimated anew with every chunk though nothing was learnt
there: what is learnt elsewhere tells of them, too."""

OTHERS = 4.0
"""The other categories count as so many visits to prompts, at most, in what is believed of one."""

_MOST_REPLACED = 8
"""How many times as many gains as there are groups may stand in the heap."""

_CLOSED = -1.0
"""A mark in place of a gain: the group is given no more."""


class InvalidReward(ValueError):
    """What a scorer gave cannot be a reward, so it says nothing about the candidate."""

    def __init__(self, candidate: Candidate, problem: str) -> None:
        super().__init__(f"group {candidate.group}, seed {candidate.seed}: {problem}")
        self.candidate = candidate
        self.problem = problem


class BanditPlanner:
    """See the module's docstring; an `ExplorationPlanner`.

    Args:
        job_seed: decides the candidates' seeds, as for `UniformPlanner`.
        iteration: the iteration that is explored for.
        prompts: one per group; knowledge is kept by prompt. One prompt may have several groups.
        keep: seeds to keep per group (K).
        candidates: candidates per group on average (N).
        most: most candidates for one group, at least K.
        trained: groups that are trained on, the first so many of them unless others contrast more;
            all by default.
        rewards: the rewards that a candidate is given. Several are summed as `reward_scales`
            describes.
        weights: of the rewards; equal by default.
        categories: one per group; a prompt that was never met is taken to be like its category.
        knowledge: what earlier iterations taught of these prompts and of all categories.

    Raises `ValueError` when a number is out of range or the sequences differ in length.
    """

    UNIFORM_EVERY = 10
    """One pull in so many goes round the groups, whatever is believed of them."""

    def __init__(
        self,
        *,
        job_seed: int,
        iteration: int,
        prompts: Sequence[str],
        keep: int,
        candidates: int,
        most: int,
        rewards: ContinuousRewards,
        trained: int | None = None,
        weights: Sequence[float] | None = None,
        categories: Sequence[str] | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        groups = len(prompts)
        categories = [""] * groups if categories is None else categories
        _check(keep, candidates, most)
        if len(categories) != groups:
            raise ValueError(f"{groups} prompts, but {len(categories)} categories")
        self._job_seed = job_seed
        self._iteration = iteration
        self._keep = keep
        self._most = most
        self._left = groups * candidates
        self._kind = rewards
        self._weights = [1.0] * len(rewards.limits) if weights is None else list(weights)
        if len(self._weights) != len(rewards.limits):
            raise ValueError(f"{len(self._weights)} weights for {len(rewards.limits)} rewards")
        self._before = Knowledge() if knowledge is None else knowledge
        self._arms = [Arm(*each) for each in zip(prompts, categories, strict=True)]
        self._categories = {name: _common(self._before, name) for name in categories}
        known = {**self._before.categories, **self._categories}
        self._everything = sum((known[name] for name in sorted(known)), self._kind.ignorance)
        self._priors: dict[str, tuple[Evidence, float]] = {}
        """What a prompt of a category is believed to be, as far as it was asked for since the last
        score was learnt."""
        self._pool = PromptPool(groups, groups if trained is None else trained)
        self._allowed: Collection[int] = range(groups)
        self._is_restricted = False
        self._challenge: tuple[int, float] | None = None
        """The group of the pool to open next, and what that gains for each candidate."""
        self._owed = deque(sorted(self._pool.opened) * keep)
        """The groups that lack candidates, once for each."""
        self._gains = [0.0] * groups
        self._best = [(0.0, group) for group in range(groups)]
        """A heap of all gains, negative, with those that were since replaced."""
        self._changed = set(range(groups))
        """The groups whose candidates or scores are not yet in their gain."""
        self._pulls = 0
        self._turn = self._revised = 0
        self._scored = self._weighed = 0
        self._weigh()

    def next_chunk(self, size: int) -> list[Candidate]:
        """See `ExplorationPlanner`."""
        if len(self._kind.limits) > 1 and self._scored >= 2 * self._weighed:
            self._weigh()
        chunk: list[Candidate] = []
        while len(chunk) < size and self._left > 0:
            group = self._next_owed()
            if group is None:
                group = self._next_pull()
            if group is None:
                break
            chunk.append(self._issue(group))
        return chunk

    def record(self, candidate: Candidate, reward: float | Sequence[float]) -> None:
        """A preview was scored, with one number per reward; the first score of a candidate counts,
        also one that was forgotten.

        Raises `InvalidReward` for what cannot be a reward: nothing changes, the candidate is still
        awaited and should be forgotten. Raises `ValueError` for a candidate never handed out.
        """
        arm = self._arm_of(candidate)
        rewards = each_reward(reward)
        problem = self._kind.problem_with(rewards)
        if problem:
            raise InvalidReward(candidate, problem)
        if candidate.seed in arm.rewards:
            return
        arm.awaited.discard(candidate.seed)
        arm.rewards[candidate.seed] = rewards
        insort(arm.values, combined(rewards, self._scale))
        self._changed.add(candidate.group)
        self._scored += 1

    def forget(self, candidate: Candidate) -> None:
        """No score will come: the candidate's place goes to another one, if the budget has it.

        Raises `ValueError` for a candidate that was never handed out.
        """
        arm = self._arm_of(candidate)
        if candidate.seed not in arm.awaited:
            return
        arm.awaited.remove(candidate.seed)
        arm.forgotten.add(candidate.seed)
        self._changed.add(candidate.group)
        lacks = len(arm.awaited) + len(arm.values) < self._keep
        if lacks and candidate.group in self._allowed:
            self._owed.append(candidate.group)

    def restrict(self, groups: Collection[int]) -> None:
        """See `ExplorationPlanner`."""
        self._allowed, self._is_restricted = frozenset(groups), True
        self._challenge = None
        there = {
            group: len(self._arms[group].awaited) + len(self._arms[group].values)
            for group in sorted(self._pool.opened)
            if group in self._allowed
        }
        self._owed = deque(
            group for number in range(self._keep) for group in there if there[group] <= number
        )
        self._changed.update(range(len(self._arms)))

    def choose(self) -> list[SeedChoice]:
        """As `UniformPlanner` chooses."""
        chooser = UniformPlanner(
            job_seed=self._job_seed,
            iteration=self._iteration,
            groups=len(self._arms),
            keep=self._keep,
            candidates=max((arm.issued for arm in self._arms), default=0),
            weights=self._weights,
        )
        for group, arm in enumerate(self._arms):
            for seed, rewards in arm.rewards.items():
                chooser.record(Candidate(group, seed), rewards)
        return chooser.choose()

    def learnt(self) -> Knowledge:
        """What is known now of the prompts and categories of this iteration, for the next one;
        nothing new is known of others."""
        scale = self._scale_now()
        old = self._before
        prompts = {arm.prompt: _own(old, arm.prompt) for arm in self._arms}
        categories = {arm.category: _common(old, arm.category) for arm in self._arms}
        for arm in self._arms:
            values = values_of(arm, scale)
            prompts[arm.prompt] += self._kind.evidence(values)
            categories[arm.category] += self._kind.visit(values)
        return Knowledge(prompts, categories)

    def belief(self, group: int) -> Evidence:
        """What is believed of the spread of a group's rewards, by what was scored before the latest
        chunk was planned."""
        arm = self._arms[group]
        prior, reliability = self._prior(arm.category)
        return prior + (_own(self._before, arm.prompt) + arm.evidence) * reliability

    def _next_owed(self) -> int | None:
        while self._owed:
            group = self._owed.popleft()
            if self._arms[group].issued < self._most:
                return group
        return None

    def _next_pull(self) -> int | None:
        self._refresh()
        while self._best and -self._best[0][0] != self._gains[self._best[0][1]]:
            heappop(self._best)
        best = -self._best[0][0] if self._best else _CLOSED
        if self._challenge is not None and self._challenge[1] > max(0.0, best):
            return self._open(self._challenge[0])
        if best == _CLOSED:
            return None
        negative, group = self._best[0]
        self._pulls += 1
        if negative < 0 and self._pulls % self.UNIFORM_EVERY:
            return group
        while True:
            group, self._turn = self._turn, (self._turn + 1) % len(self._arms)
            if self._gains[group] != _CLOSED:
                return group

    def _open(self, group: int) -> int:
        """The group is given its first candidates, of which this is one."""
        self._pool.open(group)
        self._changed.add(group)
        self._owed.extend([group] * (self._keep - 1))
        self._challenge_weakest()
        return group

    def _issue(self, group: int) -> Candidate:
        arm = self._arms[group]
        seed = derived_seed(self._job_seed, self._iteration, group, arm.issued)
        arm.issued += 1
        arm.awaited.add(seed)
        self._left -= 1
        if group not in self._changed:
            self._estimate(group)
        return Candidate(group, seed)

    def _refresh(self) -> None:
        """Learn from the scores since the last time: in the order of the groups, so that the order
        of arrival changes nothing."""
        if not self._changed:
            return
        for group in sorted(self._changed):
            self._learn(self._arms[group])
        self._priors.clear()
        groups = len(self._arms)
        others = {(self._revised + offset) % groups for offset in range(min(REVISED, groups))}
        self._revised = (self._revised + REVISED) % groups
        for group in self._changed | others:
            self._arms[group].parameter = self._kind.parameter(self.belief(group))
            self._estimate(group)
        self._changed.clear()
        if self._pool.has_more and not self._is_restricted:
            self._challenge_weakest()

    def _challenge_weakest(self) -> None:
        """Close the groups of the pool that are beaten, and see who could beat another one."""
        arms, keep = self._arms, self._keep
        contrasts = {
            group: arms[group].contrast
            for group in self._pool.opened
            if len(arms[group].values) >= keep
        }
        for group in self._pool.close_weakest(contrasts):
            del contrasts[group]
            self._estimate(group)

        def expected(group: int) -> float:
            return self._kind.first_contrast(self.belief(group), keep, self._full)

        found = self._pool.challenger(contrasts, expected)
        self._challenge = found and (found[0], found[1] / keep)

    def _learn(self, arm: Arm) -> None:
        arm.evidence = self._kind.evidence(arm.values)
        told = self._kind.visit(arm.values)
        learnt = told - arm.told
        self._categories[arm.category] += learnt
        self._everything += learnt
        arm.told = told
        if len(arm.values) >= self._keep:
            arm.contrast, arm.again = contrast_and_gain(arm.values, self._keep)

    def _prior(self, category: str) -> tuple[Evidence, float]:
        """What a prompt of this category is believed to be before its own scores, and how much of
        their weight these have."""
        if category not in self._priors:
            own = self._categories[category]
            alike = own + (self._everything - own).at_most(OTHERS)
            self._priors[category] = self._kind.prior(alike), alike.reliability()
        return self._priors[category]

    def _estimate(self, group: int) -> None:
        arm = self._arms[group]
        gain = _CLOSED
        is_full = arm.issued >= self._most or 0 < SATURATED * self._full <= arm.contrast
        if group in self._allowed and self._pool.is_open(group) and not is_full:
            live = len(arm.values) + len(arm.awaited)
            standing = Standing(arm.evidence, arm.contrast, arm.again, live)
            gain = self._kind.gain(arm.parameter, standing, self._keep, self._full)
        if gain != self._gains[group]:
            self._gains[group] = gain
            heappush(self._best, (-gain, group))
            if len(self._best) > _MOST_REPLACED * len(self._gains):
                self._best = [(-each, number) for number, each in enumerate(self._gains)]
                heapify(self._best)

    def _weigh(self) -> None:
        """Bring the rewards to one scale, as far as the scores tell it by now."""
        self._weighed = self._scored
        self._scale = self._scale_now()
        ends = [
            sorted((scale * low, scale * high))
            for scale, (low, high) in zip(self._scale, self._kind.limits, strict=True)
        ]
        low, high = map(math.fsum, zip(*ends, strict=True))
        self._full = largest_contrast(self._keep, low, high)
        for arm in self._arms:
            arm.values = values_of(arm, self._scale)
        self._changed.update(range(len(self._arms)))

    def _scale_now(self) -> list[float]:
        return reward_scale(([*arm.rewards.values()] for arm in self._arms), self._weights)

    def _arm_of(self, candidate: Candidate) -> Arm:
        if 0 <= candidate.group < len(self._arms):
            arm = self._arms[candidate.group]
            if any(candidate.seed in seeds for seeds in (arm.awaited, arm.rewards, arm.forgotten)):
                return arm
        raise ValueError(f"{candidate} was not handed out in iteration {self._iteration}")


def _own(knowledge: Knowledge, prompt: str) -> Evidence:
    return knowledge.prompts.get(prompt, Evidence()) * FADING


def _common(knowledge: Knowledge, category: str) -> Population:
    return knowledge.categories.get(category, Population()) * POPULATION_FADING


def _check(keep: int, candidates: int, most: int) -> None:
    if not 2 <= keep <= most:
        raise ValueError(f"keep must be between 2 and most ({most}), not {keep}")
    if candidates < 0:
        raise ValueError(f"candidates must be at least 0, not {candidates}")


LOOKED_AT = 16
"""Prompts, the next ones, among which the most promising is sought: the pool may be large."""


class PromptPool:
    """Which prompts of a pool are explored, by the numbers of their groups: as many as an iteration
    trains on at first, and then others in place of those that turn out to be solved, or hopeless.

    A prompt is opened when its first K candidates are expected to contrast so much more than those
    of the group that it would replace that this is worth more, for each candidate, than one more
    candidate of any open group. So no preview goes to other prompts while all of them contrast, as
    at the beginning of most runs, and many do when few still contrast.

    Args:
        groups: in the pool; the first `trained` of them are open from the beginning.
        trained: of which so many are trained on.
    """

    def __init__(self, groups: int, trained: int) -> None:
        self._trained = trained
        self._open = set(range(min(trained, groups)))
        self._waiting = dict.fromkeys(range(trained, groups))
        """Prompts that wait, in the order in which they were drawn."""

    @property
    def opened(self) -> frozenset[int]:
        """Groups that may be given candidates."""
        return frozenset(self._open)

    @property
    def has_more(self) -> bool:
        """Whether any group was never opened."""
        return bool(self._waiting)

    def is_open(self, group: int) -> bool:
        """Whether this one may be given candidates."""
        return group in self._open

    def open(self, group: int) -> None:
        """From now on it may be given candidates."""
        del self._waiting[group]
        self._open.add(group)

    def close_weakest(self, contrasts: Mapping[int, float]) -> list[int]:
        """Close the groups that will not be trained on, and return them; of equals the later ones.

        Args:
            contrasts: of the open groups of which K candidates are scored.
        """
        closed = sorted(contrasts, key=lambda group: (-contrasts[group], group))[self._trained :]
        self._open.difference_update(closed)
        return closed

    def challenger(
        self, contrasts: Mapping[int, float], expected: Callable[[int], float]
    ) -> tuple[int, float] | None:
        """The next group to open, and by how much it is expected to contrast more than the one that
        it would replace; None where there is no such group. Those that were opened and are not
        scored yet are taken to replace the weakest.

        Args:
            contrasts: of the open groups of which K candidates are scored.
            expected: contrast of the first K candidates of a group.
        """
        replaced = len(self._open) - self._trained
        if not self._waiting or replaced >= len(contrasts):
            return None
        weakest = sorted(contrasts.values())[replaced]
        values = {group: expected(group) for group in islice(self._waiting, LOOKED_AT)}
        best = max(values, key=lambda group: (values[group], -group))
        return best, values[best] - weakest
