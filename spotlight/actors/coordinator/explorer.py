"""The explorer: turns the planner's candidates into preview requests while training runs, and
chooses seeds when it ends.

Only a little is queued at a time, so that a stop leaves almost nothing behind. With a `window`
budget nothing is submitted after the predicted end of training, and previews that come after the
choice are dropped and counted. With a `fixed` budget every candidate is previewed before the
choice; a planner that learns is then asked only when all that it asked for before is scored, so
that its decisions do not depend on who was faster. Preview rewards choose seeds and are then only
reported; they become advantages only where the previews themselves are trained on.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spotlight.actors.coordinator.exploration import ExplorationPlan, Explored
from spotlight.actors.coordinator.request_plans import preview_settings, request_of
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.fidelity import contrast_at_random, contrast_of_any, draw_probes
from spotlight.policies.exploration.planners import (
    Candidate,
    ExplorationPlanner,
    RandomPlanner,
    UniformPlanner,
    chunk_size,
    derived_seed,
    widest,
)
from spotlight.policies.exploration.reuse import NONE, Patience
from spotlight.policies.exploration.reward_scales import combined, reward_scale
from spotlight.policies.exploration.reward_spread import ContinuousRewards, Knowledge
from spotlight.types import Request, RequestKind, Result

_MOST = 2
"""So many times the previews of an average prompt that is trained on may one prompt have."""


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
    deadline: float
    unsubmitted: int
    """Candidates that no request was made of yet."""
    outstanding: dict[str, Candidate] = field(default_factory=dict)
    scored: defaultdict[int, dict[int, tuple[float, ...]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """Rewards by seed, by group."""
    made: dict[str, Candidate] = field(default_factory=dict)
    """Scored ones, by request."""
    exhausted: bool = False
    stopping: bool = False
    reuses: bool = False
    """The chosen previews are the samples."""
    patience: Patience = NONE
    """With those in work, once it is stopping."""
    waits_until: float = -math.inf


class Explorer:
    """See the module's docstring. Every `now` is the loop's time.

    Args:
        groups: how many SP groups may preview now.
    """

    def __init__(self, job: JobSpec, *, groups: Callable[[], int]) -> None:
        self._job = job
        self._groups = groups
        self._now: _Exploration | None = None
        self.unsubmitted = 0
        """Candidates that may yet be previewed."""

    def start(self, plan: ExplorationPlan, now: float) -> Orders:
        """Begin, as planned."""
        self._now = _Exploration(
            plan,
            _planner(self._job, plan),
            now + plan.window_s,
            _candidates(self._job, plan) * len(plan.prompts),
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
    ) -> Orders:
        """Choose now, or when the fixed budget is spent.

        Args:
            reuses: groups that are previewed are trained on as they are.
            patience: with previews that are in work.
            withdrawn: those that nobody has begun.
        """
        if self._now is None or self._now.plan.iteration != iteration:
            return Orders()
        self._now.stopping, self._now.reuses = True, reuses
        self._now.patience, self._now.waits_until = patience, now + patience.limit_s
        return self._without(self._now, withdrawn, now)

    def go_on(self, now: float) -> Orders:
        """Time has passed."""
        return Orders() if self._now is None else self._go_on(now)

    @property
    def scored(self) -> int:
        """Previews so far."""
        return 0 if self._now is None else len(self._now.made)

    @property
    def whole(self) -> int:
        """Previews with which as many prompt groups as are trained on are whole. The bandit opens
        others of its pool only then."""
        job = self._job
        in_pool = job.explored_prompts * job.group_size
        return job.samples_per_iteration if job.exploration.mode == "bandit" else in_pool

    def finished(self, results: Sequence[Result], now: float) -> Orders:
        """Tell the planner, and ask it for more."""
        if self._now is None or not results:
            return Orders()
        for result in results:
            candidate = self._now.outstanding.pop(result.request.id, None)
            if candidate is not None:
                rewards = result.rewards[: len(self._job.rewards)]  # others are to train on
                self._now.planner.record(candidate, rewards)
                self._now.scored[candidate.group][candidate.seed] = rewards
                self._now.made[result.request.id] = candidate
        return self._go_on(now)

    def given_up(self, requests: Sequence[Request], now: float) -> Orders:
        """A candidate without a score is no candidate."""
        if self._now is None or not requests:
            return Orders()
        return self._without(self._now, requests, now)

    def _without(
        self, exploration: _Exploration, requests: Sequence[Request], now: float
    ) -> Orders:
        for request in requests:
            candidate = exploration.outstanding.pop(request.id, None)
            if candidate is not None:
                exploration.planner.forget(candidate)
        return self._go_on(now)

    def _go_on(self, now: float) -> Orders:
        assert self._now is not None
        requests = self._top_up(self._now, now)
        return self._conclude(self._now) if self._is_over(self._now, now) else Orders(requests)

    def _top_up(self, exploration: _Exploration, now: float) -> tuple[Request, ...]:
        if not self._has_time(exploration, now):
            self.unsubmitted = 0
            return ()
        size = self._wanted(exploration)
        chunk = exploration.planner.next_chunk(size)
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
        return not exploration.stopping and now < exploration.deadline

    def _is_over(self, exploration: _Exploration, now: float) -> bool:
        if self._job.exploration.budget == "fixed":
            spent = exploration.exhausted and not exploration.outstanding
            return exploration.stopping and spent
        are_enough = len(exploration.made) >= exploration.patience.scored
        in_time = exploration.outstanding and now < exploration.waits_until
        return exploration.stopping and (are_enough or not in_time)

    def _conclude(self, exploration: _Exploration) -> Orders:
        dropped = len(exploration.outstanding)
        planner = exploration.planner
        choices = widest(planner.choose(), self._job.prompts.per_iteration)
        reused = [group for group, choice in enumerate(choices) if choice.is_previewed]
        left_out = self._job.explored_prompts - len(choices)
        nothing = ((),) * left_out
        plan = exploration.plan
        scored = [
            dict(sorted(exploration.scored[group].items()))  # who was first must not matter
            for group in range(len(choices))
        ]
        scale = reward_scale([[*group.values()] for group in scored], self._job.reward_weights)
        values = [
            {seed: combined(rewards, scale) for seed, rewards in group.items()} for group in scored
        ]
        # Previews that are trained on are what they promise.
        probes = draw_probes(
            values,
            0 if exploration.reuses else self._job.exploration.probes,
            self._rng(plan, "probes"),
        )
        self._now = None
        self.unsubmitted = 0
        explored = Explored(
            plan.iteration,
            (*(choice.seeds for choice in choices), *nothing),
            (*(choice.preview_rewards for choice in choices), *nothing),
            len(exploration.made),
            dropped,
            planner.learnt() if isinstance(planner, BanditPlanner) else Knowledge(),
            (*(probe.seeds for probe in probes), *nothing),
            (*(probe.rewards for probe in probes), *nothing),
            contrast_at_random(
                [[*group.values()] for group in values if group],
                self._job.group_size,
                self._rng(plan, "subsets"),
            ),
            contrast_of_any([[*group.values()] for group in values], self._job.group_size),
            tuple(reused) if exploration.reuses else (),
            tuple(scale) if exploration.made else (),
        )
        kept = {(group, seed) for group in explored.reused for seed in explored.seeds[group]}
        unused = [key for key, one in exploration.made.items() if (one.group, one.seed) not in kept]
        return Orders(
            cancel=("preview",) if dropped else (), unused=tuple(unused), explored=explored
        )

    def _rng(self, plan: ExplorationPlan, purpose: str) -> random.Random:
        return random.Random(derived_seed(self._job.seed, plan.iteration, purpose))

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


def _planner(job: JobSpec, plan: ExplorationPlan) -> ExplorationPlanner:
    """As the job wants it."""
    candidates = _candidates(job, plan)
    if job.exploration.mode == "bandit":
        return BanditPlanner(
            job_seed=job.seed,
            iteration=plan.iteration,
            prompts=plan.prompts,
            keep=job.group_size,
            candidates=candidates,
            most=_MOST * max(job.exploration.prompt_pool * candidates, job.group_size),
            rewards=ContinuousRewards(*(reward.limits for reward in job.rewards)),
            trained=job.prompts.per_iteration,
            weights=job.reward_weights,
            categories=plan.categories,
            knowledge=plan.knowledge,
        )
    plain = RandomPlanner if job.exploration.mode == "random" else UniformPlanner
    return plain(
        job_seed=job.seed,
        iteration=plan.iteration,
        groups=len(plan.prompts),
        keep=job.group_size,
        candidates=candidates,
        weights=job.reward_weights,
    )


def _candidates(job: JobSpec, plan: ExplorationPlan) -> int:
    """Most previews of a prompt group, on average."""
    most = job.exploration.candidates * job.samples_per_iteration
    return int(plan.share * most / len(plan.prompts))
