"""The explorer: says which candidates to preview while training runs, and chooses seeds when it
ends. Whoever drives it has the previews made, and hands in what comes of them.

Only a little is queued at a time, so that a stop leaves almost nothing behind. With a `window`
budget nothing is asked for after the predicted end of training, but for what the plan says is worth
waiting for; previews that come after the choice are dropped and counted. With a `fixed` budget
every candidate is previewed before the choice; a planner that learns is then asked only when all
that it asked for before is scored, so that its decisions do not depend on who was faster. Preview
rewards choose seeds and are then only reported; they become advantages only where the previews
themselves are trained on.

Where they are, an iteration may be trained in two parts. Then only half of its prompt groups are
chosen for good when training ends; the later ones, with the previews that are in work, stay open
until the first part is trained, and are given more previews until the next exploration begins.

Where the kept seeds are to be finished before training ends, the choice does not wait to be asked
for: it is made when the fixed budget is spent, or when finishing needs the time that is left.

Pure: every `now` is the time in seconds, and every `groups` is how many SP groups may preview then.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spotlight.policies.exploration.choice_worth import choice_worth
from spotlight.policies.exploration.explored import ExplorationPlan, Explored
from spotlight.policies.exploration.fidelity import (
    contrast_at_random,
    contrast_of_any,
    draw_probes,
)
from spotlight.policies.exploration.finishing import Finish
from spotlight.policies.exploration.planners import (
    Candidate,
    ExplorationPlanner,
    SeedChoice,
    chunk_size,
    derived_seed,
    first_seeds,
    widest_beside,
)
from spotlight.policies.exploration.reuse import NONE, Patience
from spotlight.policies.exploration.reward_scales import combined, reward_scale
from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.policies.exploration.settings import (
    ExplorationSettings,
    most_candidates,
    planner_of,
)
from spotlight.policies.exploration.turns import Turn, Turns, turns_of
from spotlight.policies.training_parts import have_their_share, later_groups


class Preview(NamedTuple):
    """A candidate that is previewed for an iteration."""

    iteration: int
    group: int
    prompt: str
    seed: int

    @property
    def candidate(self) -> Candidate:
        """What the planner calls it."""
        return Candidate(self.group, self.seed)


@dataclass(frozen=True)
class Orders:
    """What follows, in this order."""

    previews: tuple[Preview, ...] = ()
    """The previews to make."""
    cancel: bool = False
    """Whether nobody wants the previews any more that are in work."""
    unused: tuple[Preview, ...] = ()
    """The previews whose samples nobody needs once the outcome is on record."""
    explored: Explored | None = None
    """The outcome, if the exploration is over."""


@dataclass
class _Exploration:
    """One iteration's."""

    plan: ExplorationPlan
    planner: ExplorationPlanner
    turns: Turns
    began: float
    deadline: float
    """Nothing is asked for after it."""
    unsubmitted: int
    """How many candidates were not asked for yet."""
    outstanding: set[Preview] = field(default_factory=set)
    """The previews in work."""
    scored: defaultdict[int, dict[int, Rewards]] = field(default_factory=lambda: defaultdict(dict))
    """The rewards by seed, by group."""
    made: list[Preview] = field(default_factory=list)
    """The previews that are scored."""
    batch_s: float = math.inf
    """What a preview takes, as far as the first one told."""
    exhausted: bool = False
    """Whether the planner wanted no more when it was asked last."""
    stopping: bool = False
    """Whether the choice is asked for."""
    reuses: bool = False
    """Whether the chosen previews are the samples."""
    patience: Patience = NONE
    """How long previews in work are waited for, once it is stopping."""
    waits_until: float = -math.inf
    chosen: Explored | None = None
    """The choice, once it is made, of which only the later groups may still change."""
    waits: bool = True
    """Whether the choice waits for as many previews as the plan says."""
    dropped: int = 0
    """How many previews in work are of no use to them."""
    finish: Finish | None = None
    """What it takes to finish the kept seeds, if that is to be done."""

    def previews(self) -> Counter[int]:
        """How many are there or in work, by group."""
        awaited = Counter(preview.group for preview in self.outstanding)
        return awaited + Counter({group: len(seeds) for group, seeds in self.scored.items()})

    def lacks(self, previews: int) -> bool:
        """Whether the choice waits for more than so many."""
        return self.waits and self.chosen is None and previews < self.plan.least

    def record(self, preview: Preview, rewards: Rewards, now: float) -> None:
        """A preview is scored; nothing unless it was asked for here."""
        if preview in self.outstanding:
            self.outstanding.remove(preview)
            self.planner.record(preview.candidate, rewards)
            self.scored[preview.group][preview.seed] = rewards
            self.made.append(preview)
            self.batch_s = min(self.batch_s, now - self.began)

    def forget(self, previews: Iterable[Preview]) -> None:
        """These will not be scored; nothing of those that were not asked for here."""
        for preview in previews:
            if preview in self.outstanding:
                self.outstanding.remove(preview)
                self.planner.forget(preview.candidate)

    def before_finishing(self, now: float, groups: int) -> float:
        """How many more previews there may be before the kept seeds are finished."""
        assert self.finish is not None
        in_work = len(self.outstanding)
        asked, left_s = len(self.made) + in_work, self.deadline - now
        return self.finish.more_previews(asked, in_work, left_s, groups)

    def unused(self, explored: Explored, groups: Iterable[int]) -> tuple[Preview, ...]:
        """The previews of these groups whose samples nobody needs."""
        gone = set(groups)
        kept = {(group, seed) for group in explored.reused for seed in explored.seeds[group]}
        return tuple(
            one for one in self.made if one.group in gone and (one.group, one.seed) not in kept
        )


class Explorer:
    """See the module's docstring."""

    def __init__(self, settings: ExplorationSettings) -> None:
        self._settings = settings
        self._now: _Exploration | None = None
        self._later: _Exploration | None = None
        """The exploration of the iteration whose first part is trained."""
        self._in_time = self._in_all = 0
        """How many previews of the exploration before were there when the first groups were chosen,
        and when the later ones were."""
        self._batch_s = math.inf
        """What a preview took in the exploration before: the first one of an exploration may wait
        for weights."""
        self.unsubmitted = 0
        """How many candidates may yet be previewed."""

    def start(
        self,
        plan: ExplorationPlan,
        now: float,
        groups: int,
        *,
        withdrawn: Iterable[Preview] = (),
        finish: Finish | None = None,
    ) -> Orders:
        """Begin, as planned.

        Args:
            withdrawn: previews for later groups that nobody has begun, and nobody is given now.
            finish: what it takes to finish the kept seeds, if that is to be done.
        """
        if self._later is not None:
            self._later.forget(withdrawn)
        settings, planner = self._settings, planner_of(self._settings, plan)
        prompts, trained = len(plan.prompts), settings.trained
        # The bandit opens others of its pool only when as many as are trained on are whole.
        whole = settings.keep * (trained if settings.planner == "bandit" else prompts)
        turns = turns_of(prompts, trained, whole, self._in_time, self._in_all)
        self._now = _Exploration(
            plan,
            planner,
            Turns(planner, turns, first_part=trained // 2),
            now,
            now + plan.window_s,
            most_candidates(settings, plan) * prompts,
            finish=finish,
        )
        return self.go_on(now, groups)

    def stop(
        self,
        iteration: int,
        now: float,
        groups: int,
        *,
        reuses: bool = False,
        finishes: bool = True,
        waits: bool = True,
        patience: Patience = NONE,
        withdrawn: Iterable[Preview] = (),
        first_part_s: float = math.inf,
    ) -> Orders:
        """Choose now, or when the fixed budget is spent.

        Args:
            reuses: groups that are previewed are trained on as they are.
            finishes: kept seeds that were to be finished still are.
            waits: the choice waits for as many previews as the plan says.
            patience: with previews that are in work.
            withdrawn: those that nobody has begun.
            first_part_s: how long the first part of the iteration will be trained, if it has two.
        """
        if self._now is None or self._now.plan.iteration != iteration:
            return Orders()
        self._now.stopping, self._now.reuses, self._now.waits = True, reuses, waits
        self._now.patience, self._now.waits_until = patience, now + patience.limit_s
        if not finishes:
            self._now.finish = None
        if self._now.finish is not None:
            self._now.deadline = now
        else:  # what is begun later comes too late for the later groups
            self._now.deadline = now + first_part_s - min(self._batch_s, self._now.batch_s)
        self._now.forget(withdrawn)
        return self.go_on(now, groups)

    def settle(self, iteration: int) -> Orders:
        """The first part of the iteration is trained: choose the later groups for good, if they are
        still open."""
        later = self._later
        if later is None or later.plan.iteration != iteration:
            return Orders()
        self._later = None
        assert later.chosen is not None
        self._in_all = len(later.made)
        explored = self._outcome(later, later.chosen.later)
        is_idle = self._now is None  # else the rest was withdrawn, or is in work
        if is_idle:
            self.unsubmitted = 0
        return Orders(
            cancel=is_idle and bool(later.outstanding),
            unused=later.unused(explored, later.chosen.later),
            explored=explored,
        )

    def finished(self, preview: Preview, rewards: Rewards, now: float) -> None:
        """A preview is scored, with one number per reward; `go_on` asks for more."""
        for exploration in (self._later, self._now):
            if exploration is not None:
                exploration.record(preview, rewards, now)

    def given_up(self, preview: Preview) -> None:
        """A candidate without a score is no candidate; `go_on` asks for others."""
        for exploration in (self._later, self._now):
            if exploration is not None:
                exploration.forget([preview])

    def go_on(self, now: float, groups: int) -> Orders:
        """Previews came in, or time has passed: ask for more, or choose."""
        exploration = self._now or self._later
        if exploration is None:
            return Orders()
        previews = self._top_up(exploration, now, groups)
        is_over = exploration.chosen is None and self._is_over(exploration, now, groups)
        return self._conclude(exploration, now, groups) if is_over else Orders(previews)

    # --- what there is ---

    @property
    def scored(self) -> int:
        """How many previews are there."""
        return 0 if self._now is None else len(self._now.made)

    @property
    def in_work(self) -> int:
        """How many previews were asked for and did not come in yet."""
        return 0 if self._now is None else len(self._now.outstanding)

    @property
    def lacking(self) -> int:
        """How many previews are lacking without which fewer groups are whole than are trained on: a
        faster worker may have made many of one group, and a slower one few of another."""
        settings, scored = self._settings, {} if self._now is None else self._now.scored
        counts = sorted((len(seeds) for seeds in scored.values()), reverse=True)
        counts += [0] * settings.trained
        return sum(max(0, settings.keep - count) for count in counts[: settings.trained])

    @property
    def is_whole(self) -> bool:
        """Whether so many previews are there that no more need be waited for: of an iteration that
        is trained in two parts, those in work are for the later one."""
        return self._settings.divides and not self.lacking

    @property
    def is_lacking(self) -> bool:
        """Whether the choice waits for previews that are not there, whenever training ends."""
        return self._now is not None and self._now.lacks(self.scored)

    @property
    def is_spent(self) -> bool:
        """Whether nothing more will be asked for, whatever is scored yet."""
        exploration = self._now
        if exploration is None:
            return True
        may_want_more = exploration.unsubmitted and exploration.outstanding
        return exploration.exhausted and not may_want_more

    # --- inside ---

    def _top_up(self, exploration: _Exploration, now: float, groups: int) -> tuple[Preview, ...]:
        if not self._has_time(exploration, now, groups):
            self.unsubmitted = 0
            return ()
        size = self._wanted(exploration, now, groups)
        chunk = exploration.turns.next_chunk(size)
        exploration.exhausted = size > 0 and not chunk
        exploration.unsubmitted -= len(chunk)
        self.unsubmitted = 0 if exploration.exhausted else exploration.unsubmitted
        plan = exploration.plan
        previews = tuple(
            Preview(plan.iteration, one.group, plan.prompts[one.group], one.seed) for one in chunk
        )
        exploration.outstanding.update(previews)
        return previews

    def _wanted(self, exploration: _Exploration, now: float, groups: int) -> int:
        """How many previews to add now."""
        outstanding, settings = len(exploration.outstanding), self._settings
        if settings.budget == "fixed" and settings.planner == "bandit":
            return 0 if outstanding else settings.samples
        size = chunk_size(outstanding, groups, settings.micro_batch)
        if settings.budget == "fixed" or exploration.finish is None:
            return size
        return int(min(size, exploration.before_finishing(now, groups)))

    def _has_time(self, exploration: _Exploration, now: float, groups: int) -> bool:
        if self._settings.budget == "fixed":
            return True
        if exploration.finish is not None:
            return exploration.before_finishing(now, groups) > 0
        if exploration.lacks(len(exploration.made) + len(exploration.outstanding)):
            return True
        chosen = exploration.chosen
        if chosen is not None:
            is_open = not have_their_share(chosen.later, chosen.reused, exploration.previews())
        else:
            is_open = not exploration.stopping
        return is_open and now < exploration.deadline

    def _is_over(self, exploration: _Exploration, now: float, groups: int) -> bool:
        finish, stopping = exploration.finish, exploration.stopping
        spent = exploration.exhausted and not exploration.outstanding
        if self._settings.budget == "fixed":
            return spent and (stopping or finish is not None)
        if finish is not None:
            wants_more = exploration.outstanding or self._has_time(exploration, now, groups)
            has_enough = stopping and len(exploration.made) >= finish.least
            return spent or has_enough or not wants_more
        if exploration.lacks(len(exploration.made)):
            return spent and stopping
        are_enough = len(exploration.made) >= exploration.patience.scored
        in_time = exploration.outstanding and now < exploration.waits_until
        return stopping and (are_enough or not in_time)

    def _conclude(self, exploration: _Exploration, now: float, groups: int) -> Orders:
        """Choose; groups of the later part stay open."""
        self._now, self._batch_s = None, exploration.batch_s
        everything = range(len(exploration.plan.prompts))
        explored = self._outcome(exploration, everything)
        later = explored.later
        if not later:
            self._in_time = self.unsubmitted = 0
            return Orders(
                cancel=bool(exploration.outstanding),
                unused=exploration.unused(explored, everything),
                explored=explored,
            )
        open_ones = {one for one in exploration.outstanding if one.group in later}
        exploration.dropped = len(exploration.outstanding) - len(open_ones)
        exploration.outstanding, exploration.chosen = open_ones, explored
        exploration.planner.restrict(later)
        exploration.turns = Turns(exploration.planner, [Turn(later, math.inf)])
        self._later, self._in_time = exploration, len(exploration.made)
        closed = [group for group in everything if group not in later]
        return Orders(
            self._top_up(exploration, now, groups),
            unused=exploration.unused(explored, closed),
            explored=explored,
        )

    def _outcome(self, exploration: _Exploration, open_groups: Collection[int]) -> Explored:
        """The choice as it is now, where groups that are not open keep their seeds."""
        settings, before = self._settings, exploration.chosen
        choices = exploration.planner.choose()
        if before is None:
            choices = widest_beside(choices, settings.trained, exploration.turns.first)
        else:
            kept = zip(before.seeds, before.preview_rewards, strict=True)
            choices = [
                choices[group] if group in open_groups else SeedChoice(seeds, rewards)
                for group, (seeds, rewards) in enumerate(kept)
            ]
        return outcome(
            settings,
            exploration.plan.iteration,
            choices,
            exploration.scored,
            learnt=exploration.planner.learnt(),
            late=exploration.dropped + len(exploration.outstanding),
            reuses=exploration.reuses,
            later=self._later_groups(exploration, choices) if before is None else before.later,
        )

    def _later_groups(
        self, exploration: _Exploration, choices: Sequence[SeedChoice]
    ) -> tuple[int, ...]:
        """None where training would have to wait for samples that are to be denoised."""
        are_there = all(choice.is_previewed for choice in choices if choice.seeds)
        if not (exploration.reuses and self._settings.divides and are_there):
            return ()
        trained = [group for group, choice in enumerate(choices) if choice.seeds]
        first = exploration.turns.first
        if first:
            return tuple(group for group in trained if group not in first)
        scored = {group: len(rewards) for group, rewards in exploration.scored.items()}
        awaited = Counter(preview.group for preview in exploration.outstanding)
        return later_groups(trained, scored, awaited)


Rewards = tuple[float, ...]


def outcome(
    settings: ExplorationSettings,
    iteration: int,
    choices: Sequence[SeedChoice],
    scored: Mapping[int, Mapping[int, Rewards]],
    *,
    learnt: Knowledge,
    late: int,
    reuses: bool,
    later: tuple[int, ...],
) -> Explored:
    """The record of a choice.

    Args:
        choices: of every group, without seeds for those that are not trained on.
        scored: rewards by seed, by group.
        late: previews that were in work, and of no use.
        reuses: the chosen previews are the samples.
        later: groups that the later updates train on.
    """
    reused = [group for group, choice in enumerate(choices) if choice.is_previewed]
    groups = [
        dict(sorted(scored.get(group, {}).items()))  # who was first must not matter
        for group in range(len(choices))
    ]
    scale = reward_scale([[*group.values()] for group in groups], settings.weights)
    values = [
        {seed: combined(rewards, scale) for seed, rewards in group.items()} for group in groups
    ]
    rewards = [[*group.values()] for group in values]
    at_random = _unchosen(settings, iteration, values)
    # Previews that are trained on are what they promise.
    wanted = 0 if reuses else settings.probes
    probes = draw_probes(values, wanted, _rng(settings, iteration, "probes"))
    return Explored(
        iteration,
        seeds=tuple(choice.seeds for choice in choices),
        preview_rewards=tuple(
            tuple(values[group].get(seed) for seed in choice.seeds)
            for group, choice in enumerate(choices)
        ),
        previews=sum(map(len, groups)),
        late=late,
        knowledge=learnt,
        probe_seeds=tuple(probe.seeds for probe in probes),
        probe_rewards=tuple(probe.rewards for probe in probes),
        contrast_at_random=contrast_at_random(
            [group for group in rewards if group],
            settings.keep,
            _rng(settings, iteration, "subsets"),
        ),
        contrast_of_any=contrast_of_any(at_random, settings.keep),
        random_groups=sum(len(group) > 1 for group in at_random),
        reused=tuple(reused) if reuses else (),
        later=later,
        scale=tuple(scale) if any(groups) else (),
        worth=choice_worth(rewards, settings.keep, _rng(settings, iteration, "worth")),
    )


def _unchosen(
    settings: ExplorationSettings, iteration: int, values: Sequence[Mapping[int, float]]
) -> list[list[float]]:
    """The rewards of what would have been trained on without exploration, as far as it is there. A
    planner that learns gives more previews to groups that were unlucky: the first ones of each
    group do not depend on any reward, so their spread is that of random seeds."""
    first = first_seeds(settings.seed, iteration, settings.trained, settings.keep)
    return [
        [known[seed] for seed in choice.seeds if seed in known]
        for choice, known in zip(first, values, strict=False)  # tests may explore fewer groups
    ]


def _rng(settings: ExplorationSettings, iteration: int, purpose: str) -> random.Random:
    return random.Random(derived_seed(settings.seed, iteration, purpose))
