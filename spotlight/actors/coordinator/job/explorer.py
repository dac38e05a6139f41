"""The explorer: turns the planner's candidates into preview requests while training runs, and
chooses seeds when it ends.

Only a little is queued at a time, so that a stop leaves almost nothing behind. With a `window`
budget nothing is submitted after the predicted end of training, and previews that come after the
choice are dropped and counted. With a `fixed` budget every candidate is previewed before the
choice; a planner that learns is then asked only when all that it asked for before is scored, so
that its decisions do not depend on who was faster. Preview rewards choose seeds and are then only
reported; they become advantages only where the previews themselves are trained on.

There an iteration may be trained in two parts. Then only half of its prompt groups are chosen for
good when training ends; the later ones, with the previews that are in work, stay open until the
first part is trained, and are given more previews until the next exploration begins.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from spotlight.actors.coordinator.job.exploration_outcome import outcome
from spotlight.actors.coordinator.job.exploration_planner import most_candidates, planner_of
from spotlight.actors.coordinator.tenant.request_plans import preview_settings, request_of
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.explored import ExplorationPlan, Explored
from spotlight.policies.exploration.planners import (
    Candidate,
    ExplorationPlanner,
    SeedChoice,
    chunk_size,
    widest,
    widest_beside,
)
from spotlight.policies.exploration.reuse import NONE, Patience
from spotlight.policies.exploration.turns import Turn, Turns, turns_of
from spotlight.policies.training_parts import have_their_share, later_groups
from spotlight.types import Request, RequestKind, Result


@dataclass(frozen=True)
class Orders:
    """What follows, in this order."""

    requests: tuple[Request, ...] = ()
    """To submit."""
    cancel: tuple[RequestKind, ...] = ()
    """Kinds of requests that nobody wants any more."""
    unused: tuple[str, ...] = ()
    """Previews whose samples nobody needs once the outcome is on record."""
    explored: Explored | None = None
    """The outcome: the exploration is over."""


@dataclass
class _Exploration:
    plan: ExplorationPlan
    planner: ExplorationPlanner
    turns: Turns
    began: float
    deadline: float
    """Nothing is submitted after it."""
    unsubmitted: int
    """Candidates that no request was made of yet."""
    outstanding: dict[str, Candidate] = field(default_factory=dict)
    scored: defaultdict[int, dict[int, tuple[float, ...]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """Rewards by seed, by group."""
    batch_s: float = math.inf
    """What a preview takes, as far as the first one told."""
    made: dict[str, Candidate] = field(default_factory=dict)
    """Scored ones, by request."""
    exhausted: bool = False
    stopping: bool = False
    reuses: bool = False
    """The chosen previews are the samples."""
    patience: Patience = NONE
    """With those in work, once it is stopping."""
    waits_until: float = -math.inf
    first: tuple[int, ...] = ()
    """Groups of a pool that the first part trains on, once their turn is over."""
    chosen: Explored | None = None
    """The choice, once it is made, of which only the later groups may still change."""
    dropped: int = 0
    """Previews in work that are of no use to them."""

    def previews(self) -> Counter[int]:
        """Those that are there or in work, by group."""
        awaited = Counter(candidate.group for candidate in self.outstanding.values())
        return awaited + Counter({group: len(seeds) for group, seeds in self.scored.items()})


class Explorer:
    """See the module's docstring. Every `now` is the loop's time.

    Args:
        groups: how many SP groups may preview now.
    """

    def __init__(self, job: JobSpec, *, groups: Callable[[], int]) -> None:
        self._job = job
        self._groups = groups
        self._now: _Exploration | None = None
        self._later: _Exploration | None = None
        """Of the iteration whose first part is trained."""
        self._in_time = self._in_all = 0
        """Previews of the exploration before that were there when the first groups were chosen, and
        when the later ones were."""
        self._batch_s = math.inf
        """What a preview took in the exploration before: the first one of an exploration may wait
        for weights."""
        self.unsubmitted = 0
        """Candidates that may yet be previewed."""

    def start(
        self, plan: ExplorationPlan, now: float, *, withdrawn: Sequence[Request] = ()
    ) -> Orders:
        """Begin, as planned.

        Args:
            withdrawn: previews for later groups that nobody has begun, and nobody is given now.
        """
        self._forget(self._later, withdrawn)
        job, planner = self._job, planner_of(self._job, plan)
        groups, trained = len(plan.prompts), job.prompts.per_iteration
        turns = turns_of(groups, trained, self.whole, self._in_time, self._in_all)
        self._now = _Exploration(
            plan,
            planner,
            Turns(planner, turns, self._other_groups),
            now,
            now + plan.window_s,
            most_candidates(self._job, plan) * groups,
        )
        return Orders(self._top_up(self._now, now))

    def stop(
        self,
        iteration: int,
        now: float,
        *,
        reuses: bool = False,
        patience: Patience = NONE,
        withdrawn: Sequence[Request] = (),
        first_part_s: float = math.inf,
    ) -> Orders:
        """Choose now, or when the fixed budget is spent.

        Args:
            reuses: groups that are previewed are trained on as they are.
            patience: with previews that are in work.
            withdrawn: those that nobody has begun.
            first_part_s: how long the first part of the iteration will be trained, if it has two.
        """
        if self._now is None or self._now.plan.iteration != iteration:
            return Orders()
        self._now.stopping, self._now.reuses = True, reuses
        self._now.patience, self._now.waits_until = patience, now + patience.limit_s
        # What is begun later comes too late for the later groups.
        self._now.deadline = now + first_part_s - min(self._batch_s, self._now.batch_s)
        self._forget(self._now, withdrawn)
        return self.go_on(now)

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
            cancel=("preview",) if is_idle and later.outstanding else (),
            unused=_unused(later, explored, later.chosen.later),
            explored=explored,
        )

    @property
    def is_whole(self) -> bool:
        """Whether so many previews are there that no more need be waited for: of an iteration that
        is trained in two parts, those in work are for the later one."""
        return self._job.divides_training and not self.lacking

    @property
    def scored(self) -> int:
        """Previews so far."""
        return 0 if self._now is None else len(self._now.made)

    @property
    def lacking(self) -> int:
        """Previews without which fewer groups are whole than are trained on: a faster worker may
        have made many of one group, and a slower one few of another."""
        job, scored = self._job, {} if self._now is None else self._now.scored
        counts = sorted((len(seeds) for seeds in scored.values()), reverse=True)
        counts += [0] * job.prompts.per_iteration
        nearest = counts[: job.prompts.per_iteration]
        return sum(max(0, job.group_size - count) for count in nearest)

    @property
    def whole(self) -> int:
        """Previews with which as many prompt groups as are trained on are whole. The bandit opens
        others of its pool only then."""
        job = self._job
        in_pool = job.explored_prompts * job.group_size
        return job.samples_per_iteration if job.exploration.mode == "bandit" else in_pool

    def finished(self, results: Sequence[Result], now: float) -> Orders:
        """Tell the planner, and ask it for more."""
        explorations = [each for each in (self._later, self._now) if each is not None]
        if not explorations or not results:
            return Orders()
        for result in results:
            for exploration in explorations:
                candidate = exploration.outstanding.pop(result.request.id, None)
                if candidate is not None:
                    rewards = result.rewards[: len(self._job.rewards)]  # others are to train on
                    exploration.planner.record(candidate, rewards)
                    exploration.scored[candidate.group][candidate.seed] = rewards
                    exploration.made[result.request.id] = candidate
                    exploration.batch_s = min(exploration.batch_s, now - exploration.began)
        return self.go_on(now)

    def given_up(self, requests: Sequence[Request], now: float) -> Orders:
        """A candidate without a score is no candidate."""
        if not requests:
            return Orders()
        for exploration in (self._later, self._now):
            self._forget(exploration, requests)
        return self.go_on(now)

    @staticmethod
    def _forget(exploration: _Exploration | None, requests: Iterable[Request]) -> None:
        if exploration is None:
            return
        for request in requests:
            candidate = exploration.outstanding.pop(request.id, None)
            if candidate is not None:
                exploration.planner.forget(candidate)

    def go_on(self, now: float) -> Orders:
        """Time has passed: ask for more, or choose."""
        exploration = self._now or self._later
        if exploration is None:
            return Orders()
        requests = self._top_up(exploration, now)
        is_over = exploration.chosen is None and self._is_over(exploration, now)
        return self._conclude(exploration, now) if is_over else Orders(requests)

    def _top_up(self, exploration: _Exploration, now: float) -> tuple[Request, ...]:
        if not self._has_time(exploration, now):
            self.unsubmitted = 0
            return ()
        size = self._wanted(exploration)
        chunk = exploration.turns.next_chunk(size)
        exploration.exhausted = size > 0 and not chunk
        exploration.unsubmitted -= len(chunk)
        self.unsubmitted = 0 if exploration.exhausted else exploration.unsubmitted
        requests = tuple(self._request(exploration.plan, candidate) for candidate in chunk)
        exploration.outstanding.update(
            (request.id, candidate) for request, candidate in zip(requests, chunk, strict=True)
        )
        return requests

    def _wanted(self, exploration: _Exploration) -> int:
        """How many previews to add now."""
        outstanding, job = len(exploration.outstanding), self._job
        if job.exploration.budget == "fixed" and job.exploration.mode == "bandit":
            return 0 if outstanding else job.samples_per_iteration
        return chunk_size(outstanding, self._groups(), job.sampler.micro_batch)

    def _has_time(self, exploration: _Exploration, now: float) -> bool:
        if self._job.exploration.budget == "fixed":
            return True
        chosen = exploration.chosen
        if chosen is not None:
            is_open = not have_their_share(chosen.later, chosen.reused, exploration.previews())
        else:
            is_open = not exploration.stopping
        return is_open and now < exploration.deadline

    def _is_over(self, exploration: _Exploration, now: float) -> bool:
        if self._job.exploration.budget == "fixed":
            spent = exploration.exhausted and not exploration.outstanding
            return exploration.stopping and spent
        are_enough = len(exploration.made) >= exploration.patience.scored
        in_time = exploration.outstanding and now < exploration.waits_until
        return exploration.stopping and (are_enough or not in_time)

    def _conclude(self, exploration: _Exploration, now: float) -> Orders:
        """Choose; groups of the later part stay open."""
        self._now, self._batch_s = None, exploration.batch_s
        explored = self._outcome(exploration, range(len(exploration.plan.prompts)))
        later = explored.later
        if not later:
            self._in_time = self.unsubmitted = 0
            return Orders(
                cancel=("preview",) if exploration.outstanding else (),
                unused=_unused(exploration, explored, range(len(explored.seeds))),
                explored=explored,
            )
        open_ones = {key: one for key, one in exploration.outstanding.items() if one.group in later}
        exploration.dropped = len(exploration.outstanding) - len(open_ones)
        exploration.outstanding, exploration.chosen = open_ones, explored
        exploration.planner.restrict(later)
        exploration.turns = Turns(exploration.planner, [Turn(later, math.inf)])
        self._later, self._in_time = exploration, len(exploration.made)
        closed = [group for group in range(len(explored.seeds)) if group not in later]
        return Orders(
            self._top_up(exploration, now),
            unused=_unused(exploration, explored, closed),
            explored=explored,
        )

    def _outcome(self, exploration: _Exploration, open_groups: Collection[int]) -> Explored:
        """The choice as it is now, where groups that are not open keep their seeds."""
        plan, before = exploration.plan, exploration.chosen
        choices = exploration.planner.choose()
        trained = self._job.prompts.per_iteration
        if before is None:
            choices = widest_beside(choices, trained, exploration.first)
        else:
            kept = zip(before.seeds, before.preview_rewards, strict=True)
            choices = [
                choices[group] if group in open_groups else SeedChoice(seeds, rewards)
                for group, (seeds, rewards) in enumerate(kept)
            ]
        return outcome(
            self._job,
            plan,
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
        if not (exploration.reuses and self._job.divides_training and are_there):
            return ()
        trained = [group for group, choice in enumerate(choices) if choice.seeds]
        if exploration.first:
            return tuple(group for group in trained if group not in exploration.first)
        scored = {group: len(rewards) for group, rewards in exploration.scored.items()}
        awaited = Counter(candidate.group for candidate in exploration.outstanding.values())
        return later_groups(trained, scored, awaited)

    def _other_groups(self) -> list[int]:
        """The groups of the pool but those that the first part trains on, which are chosen now: of
        the others, it may depend on what is to come which are trained on. All groups where too few
        are whole yet to choose among: many workers are given many previews before any is scored."""
        exploration, half = self._now, self._job.prompts.per_iteration // 2
        assert exploration is not None
        choices = widest(exploration.planner.choose(), half)
        widest_ones = [group for group, one in enumerate(choices) if one.seeds]
        if all(choices[group].is_previewed for group in widest_ones):
            exploration.first = tuple(widest_ones)
        return [group for group in range(len(choices)) if group not in exploration.first]

    def _request(self, plan: ExplorationPlan, candidate: Candidate) -> Request:
        return request_of(
            "preview",
            plan.iteration,
            plan.weights_version,
            candidate.group,
            plan.prompts[candidate.group],
            candidate.seed,
            preview_settings(self._job, plan.iteration),
        )


def _unused(
    exploration: _Exploration, explored: Explored, groups: Iterable[int]
) -> tuple[str, ...]:
    """The previews of these groups whose samples nobody needs."""
    gone = set(groups)
    kept = {(group, seed) for group in explored.reused for seed in explored.seeds[group]}
    return tuple(
        key
        for key, one in exploration.made.items()
        if one.group in gone and (one.group, one.seed) not in kept
    )
