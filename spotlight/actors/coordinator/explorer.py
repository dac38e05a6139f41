"""The explorer: turns the planner's candidates into preview requests while training runs, and
chooses seeds when it ends.

Messages in: StartExploration, StopExploration (job runner), RequestsFinished, RequestsGivenUp
(dispatcher).
Messages out: SubmitRequests, CancelRequests (dispatcher), Explored (job runner).

Only a little is queued at a time, so that a stop leaves almost nothing behind. With a `window`
budget nothing is submitted after the predicted end of training, and previews that come after the
choice are dropped and counted. With a `fixed` budget every candidate is previewed before the
choice; a planner that learns is then asked only when all that it asked for before is scored, so
that its decisions do not depend on who was faster. Preview rewards choose seeds and are then only
reported; they never become advantages.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from spotlight.actors.coordinator.request_plans import preview_settings
from spotlight.actors.protocol import (
    CancelRequests,
    Explored,
    RequestsFinished,
    RequestsGivenUp,
    StartExploration,
    StopExploration,
    SubmitRequests,
)
from spotlight.actors.runtime import Actor, ActorRef, from_this_process, handles
from spotlight.jobs import JobSpec
from spotlight.policies.dispatch.table import RequestTable
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
from spotlight.policies.exploration.reward_spread import ContinuousRewards, Knowledge
from spotlight.types import Request, RequestId

log = structlog.get_logger(__name__)

_REWARDS = ContinuousRewards((0.0, 1.0))
_MOST = 2
"""So many times the previews of an average prompt may one prompt have."""


@dataclass
class _Exploration:
    start: StartExploration
    planner: ExplorationPlanner
    deadline: float
    reply_to: ActorRef
    unsubmitted: int
    """Candidates that no request was made of yet."""
    outstanding: dict[str, Candidate] = field(default_factory=dict)
    scored: defaultdict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Rewards by seed, by group."""
    previews: int = 0
    exhausted: bool = False
    stopping: bool = False


class Explorer(Actor):
    """See the module's docstring.

    Args:
        groups: how many SP groups may preview now.
        table: told how many candidates are still to come.
    """

    def __init__(
        self,
        job: JobSpec,
        dispatcher: ActorRef,
        *,
        groups: Callable[[], int],
        table: RequestTable,
    ) -> None:
        self._job = job
        self._dispatcher = dispatcher
        self._groups = groups
        self._table = table
        self._now: _Exploration | None = None
        self._late = 0

    @handles(StartExploration, only=from_this_process)
    async def on_start(self, message: StartExploration) -> None:
        """Begin, for the iteration named."""
        assert self.sender is not None
        now = asyncio.get_running_loop().time()
        candidates = _candidates(self._job, message)
        planner = _planner(self._job, message)
        self._now = _Exploration(
            message,
            planner,
            now + message.window_s,
            self.sender,
            candidates * len(message.prompts),
        )
        self._top_up(self._now)

    @handles(StopExploration, only=from_this_process)
    async def on_stop(self, message: StopExploration) -> None:
        """Choose now, or when the fixed budget is spent."""
        exploration = self._now
        if exploration is None or exploration.start.iteration != message.iteration:
            return
        exploration.stopping = True
        self._go_on()

    @handles(RequestsFinished, only=from_this_process)
    async def on_finished(self, message: RequestsFinished) -> None:
        """Tell the planner, and ask it for more."""
        for result in message.results:
            candidate = self._take(result.request)
            if candidate is not None and self._now is not None:
                self._now.planner.record(candidate, result.reward)
                self._now.scored[candidate.group][candidate.seed] = result.reward
                self._now.previews += 1
        self._go_on()

    @handles(RequestsGivenUp, only=from_this_process)
    async def on_given_up(self, message: RequestsGivenUp) -> None:
        """A candidate without a score is no candidate."""
        log.warning("previews_given_up", count=len(message.requests), reason=message.reason)
        for request in message.requests:
            candidate = self._take(request)
            if candidate is not None and self._now is not None:
                self._now.planner.forget(candidate)
        self._go_on()

    def _go_on(self) -> None:
        if self._now is not None:
            self._top_up(self._now)
            self._conclude_if_over(self._now)

    def _take(self, request: Request) -> Candidate | None:
        candidate = self._now.outstanding.pop(request.id, None) if self._now is not None else None
        if candidate is None:
            self._late += 1
        return candidate

    def _top_up(self, exploration: _Exploration) -> None:
        if not self._has_time(exploration):
            self._table.unsubmitted_previews = 0
            return
        size = self._wanted(exploration)
        chunk = exploration.planner.next_chunk(size)
        exploration.exhausted = size > 0 and not chunk
        exploration.unsubmitted -= len(chunk)
        self._table.unsubmitted_previews = 0 if exploration.exhausted else exploration.unsubmitted
        if not chunk:
            return
        requests = tuple(self._request(exploration.start, candidate) for candidate in chunk)
        exploration.outstanding.update(
            (request.id, candidate) for request, candidate in zip(requests, chunk, strict=True)
        )
        self.tell(self._dispatcher, SubmitRequests(requests, self.ref))

    def _wanted(self, exploration: _Exploration) -> int:
        """How many previews to add now."""
        outstanding, job = len(exploration.outstanding), self._job
        if job.exploration.budget == "fixed" and job.exploration.mode == "bandit":
            return 0 if outstanding else job.samples_per_iteration
        return chunk_size(outstanding, self._groups(), job.sampler.micro_batch)

    def _has_time(self, exploration: _Exploration) -> bool:
        if self._job.exploration.budget == "fixed":
            return True
        return not exploration.stopping and (
            asyncio.get_running_loop().time() < exploration.deadline
        )

    def _conclude_if_over(self, exploration: _Exploration) -> None:
        if not exploration.stopping:
            return
        if self._job.exploration.budget == "fixed" and (
            exploration.outstanding or not exploration.exhausted
        ):
            return
        dropped = len(exploration.outstanding)
        if dropped:
            self.tell(self._dispatcher, CancelRequests("preview"))
        planner = exploration.planner
        choices = widest(planner.choose(), self._job.prompts.per_iteration)
        left_out = self._job.explored_prompts - len(choices)
        nothing = ((),) * left_out
        start = exploration.start
        probes = draw_probes(
            [exploration.scored[group] for group in range(len(choices))],
            self._job.exploration.probes,
            self._rng(start, "probes"),
        )
        self._now = None
        self._table.unsubmitted_previews = 0
        self.tell(
            exploration.reply_to,
            Explored(
                start.iteration,
                (*(choice.seeds for choice in choices), *nothing),
                (*(choice.preview_rewards for choice in choices), *nothing),
                exploration.previews,
                dropped,
                planner.learnt() if isinstance(planner, BanditPlanner) else Knowledge(),
                (*(probe.seeds for probe in probes), *nothing),
                (*(probe.rewards for probe in probes), *nothing),
                contrast_at_random(
                    [  # sorted: who was scored first must not matter
                        [rewards[seed] for seed in sorted(rewards)]
                        for _, rewards in sorted(exploration.scored.items())
                    ],
                    self._job.group_size,
                    self._rng(start, "subsets"),
                ),
                start.effort if start.share > 0 else None,
            ),
        )

    def _rng(self, start: StartExploration, purpose: str) -> random.Random:
        return random.Random(derived_seed(self._job.seed, start.iteration, purpose))

    def _request(self, start: StartExploration, candidate: Candidate) -> Request:
        return Request(
            id=str(
                RequestId(
                    "preview",
                    start.iteration,
                    start.weights_version,
                    candidate.group,
                    candidate.seed,
                )
            ),
            kind="preview",
            iteration=start.iteration,
            group=candidate.group,
            prompt=start.prompts[candidate.group],
            seed=candidate.seed,
            weights_version=start.weights_version,
            settings=preview_settings(self._job, start.iteration, start.effort.preview_steps),
        )


def _planner(job: JobSpec, start: StartExploration) -> ExplorationPlanner:
    """As the job wants it."""
    candidates = _candidates(job, start)
    if job.exploration.mode == "bandit":
        return BanditPlanner(
            job_seed=job.seed,
            iteration=start.iteration,
            prompts=start.prompts,
            keep=job.group_size,
            candidates=candidates,
            most=_MOST * max(candidates, job.group_size),
            rewards=_REWARDS,
            categories=start.categories,
            knowledge=start.knowledge,
        )
    plain = RandomPlanner if job.exploration.mode == "random" else UniformPlanner
    return plain(
        job_seed=job.seed,
        iteration=start.iteration,
        groups=len(start.prompts),
        keep=job.group_size,
        candidates=candidates,
    )


def _candidates(job: JobSpec, start: StartExploration) -> int:
    """Most previews of a prompt group, on average."""
    most = job.exploration.candidates * job.samples_per_iteration
    return int(start.share * most / len(start.prompts))
