"""The explorer: turns the planner's candidates into preview requests while training runs, and
chooses seeds when it ends.

Only a little is queued at a time, so that a stop leaves almost nothing behind. With a `window`
budget nothing is submitted after the predicted end of training, and previews that come after the
choice are dropped and counted. With a `fixed` budget every candidate is previewed before the
choice; a planner that learns is then asked only when all that it asked for before is scored, so
that its decisions do not depend on who was faster. Preview rewards choose seeds and are then only
reported; they never become advantages.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spotlight.actors.coordinator.exploration import ExplorationPlan, Explored
from spotlight.actors.coordinator.request_plans import preview_settings
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.fidelity import contrast_at_random, draw_probes
from spotlight.policies.exploration.planners import (
    Candidate,
    ExplorationPlanner,
    RandomPlanner,
    UniformPlanner,
    chunk_size,
    derived_seed,
    widest,
)
from spotlight.policies.exploration.reward_scales import combined, reward_scale
from spotlight.policies.exploration.reward_spread import ContinuousRewards, Knowledge
from spotlight.types import Request, RequestId, RequestKind, Result

_MOST = 2
"""So many times the previews of an average prompt may one prompt have."""


@dataclass(frozen=True)
class Orders:
    """What follows, in this order."""

    requests: tuple[Request, ...] = ()
    """To submit."""
    cancel: tuple[RequestKind, ...] = ()
    """Kinds of requests that nobody wants any more."""
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
    previews: int = 0
    exhausted: bool = False
    stopping: bool = False


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

    def stop(self, iteration: int, now: float) -> Orders:
        """Choose now, or when the fixed budget is spent."""
        if self._now is None or self._now.plan.iteration != iteration:
            return Orders()
        self._now.stopping = True
        return self._go_on(now)

    def finished(self, results: Sequence[Result], now: float) -> Orders:
        """Tell the planner, and ask it for more."""
        if self._now is None or not results:
            return Orders()
        for result in results:
            candidate = self._now.outstanding.pop(result.request.id, None)
            if candidate is not None:
                self._now.planner.record(candidate, result.rewards)
                self._now.scored[candidate.group][candidate.seed] = result.rewards
                self._now.previews += 1
        return self._go_on(now)

    def given_up(self, requests: Sequence[Request], now: float) -> Orders:
        """A candidate without a score is no candidate."""
        if self._now is None or not requests:
            return Orders()
        for request in requests:
            candidate = self._now.outstanding.pop(request.id, None)
            if candidate is not None:
                self._now.planner.forget(candidate)
        return self._go_on(now)

    def _go_on(self, now: float) -> Orders:
        assert self._now is not None
        requests = self._top_up(self._now, now)
        return self._conclude(self._now) if self._is_over(self._now) else Orders(requests)

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

    def _is_over(self, exploration: _Exploration) -> bool:
        if self._job.exploration.budget == "fixed":
            spent = exploration.exhausted and not exploration.outstanding
            return exploration.stopping and spent
        return exploration.stopping

    def _conclude(self, exploration: _Exploration) -> Orders:
        dropped = len(exploration.outstanding)
        planner = exploration.planner
        choices = widest(planner.choose(), self._job.prompts.per_iteration)
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
        probes = draw_probes(
            values,
            self._job.exploration.probes,
            self._rng(plan, "probes"),
        )
        self._now = None
        self.unsubmitted = 0
        explored = Explored(
            plan.iteration,
            (*(choice.seeds for choice in choices), *nothing),
            (*(choice.preview_rewards for choice in choices), *nothing),
            exploration.previews,
            dropped,
            planner.learnt() if isinstance(planner, BanditPlanner) else Knowledge(),
            (*(probe.seeds for probe in probes), *nothing),
            (*(probe.rewards for probe in probes), *nothing),
            contrast_at_random(
                [[*group.values()] for group in values if group],
                self._job.group_size,
                self._rng(plan, "subsets"),
            ),
            plan.effort if plan.share > 0 else None,
            tuple(scale) if exploration.previews else (),
        )
        return Orders(cancel=("preview",) if dropped else (), explored=explored)

    def _rng(self, plan: ExplorationPlan, purpose: str) -> random.Random:
        return random.Random(derived_seed(self._job.seed, plan.iteration, purpose))

    def _request(self, plan: ExplorationPlan, candidate: Candidate) -> Request:
        return Request(
            id=str(
                RequestId(
                    "preview",
                    plan.iteration,
                    plan.weights_version,
                    candidate.group,
                    candidate.seed,
                )
            ),
            kind="preview",
            iteration=plan.iteration,
            group=candidate.group,
            prompt=plan.prompts[candidate.group],
            seed=candidate.seed,
            weights_version=plan.weights_version,
            settings=preview_settings(self._job, plan.iteration, plan.effort.preview_steps),
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
            most=_MOST * max(candidates, job.group_size),
            rewards=ContinuousRewards(*(reward.limits for reward in job.rewards)),
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
