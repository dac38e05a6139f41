"""A reward worker: pulls denoised batches and scores them in its own thread, while others still
denoise.

Messages in: PrepareJob, EndJob, ScoreGrant. Messages out: PullScores, Scored, ScoreFailed.

A failure is reported as a failure; it never becomes a reward. Pulls renew the leases that they
list; rewards are delivered until the dispatcher acknowledges them, to the one that the latest
`PrepareJob` of the job names. A lease begins once, however often its grant comes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from spotlight.actors.delivery import insist, try_tell
from spotlight.actors.messages import (
    Acknowledged,
    EndJob,
    Membership,
    PrepareJob,
    PullScores,
    Scored,
    ScoreFailed,
    ScoreGrant,
)
from spotlight.actors.recent import Recent
from spotlight.actors.runtime import Actor, handles
from spotlight.actors.worker_state import WorkerContext
from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec
from spotlight.rewards.base import Scorer, build_scorer
from spotlight.transport.tensors import fetch
from spotlight.transport.tensors.bundles import unpack

log = structlog.get_logger(__name__)

_CREDITS = 2
_PULL_S = 4.0
_CLOSED_LEASES = 1024


@dataclass
class _Job:
    id: str
    membership: Membership
    scorer: Scorer
    leases: dict[int, ScoreGrant] = field(default_factory=dict)
    closed: Recent[int] = field(default_factory=lambda: Recent(_CLOSED_LEASES))


class RewardWorker(Actor):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._job: _Job | None = None
        self._scorers: dict[RewardSpec, Scorer] = {}

    async def started(self) -> None:
        """Pull regularly, for as long as this loop turns."""
        self.run_task(self._keep_pulling())

    @handles(PrepareJob)
    async def on_prepare(self, message: PrepareJob) -> Acknowledged:
        """Build the scorer, unless it is there already, and begin to pull; or, for the same job, go
        on for a coordinator that came back.
        """
        spec = message.job.reward
        if spec not in self._scorers:
            self._scorers[spec] = await self._context.on_scorer(lambda: build_scorer(spec))
        if self._job is None or self._job.id != message.job_id:
            self._job = _Job(message.job_id, message.membership, self._scorers[spec])
        self._job.membership = message.membership
        self._pull(self._job)
        return Acknowledged()

    @handles(ScoreGrant)
    async def on_score_grant(self, message: ScoreGrant) -> None:
        """Score a batch; the answer is a message."""
        job = self._job
        if job is None or self.sender != job.membership.dispatcher:
            return
        if message.lease in job.leases or message.lease in job.closed:
            log.info("grant_ignored", lease=message.lease)
            return
        job.leases[message.lease] = message
        self.run_task(self._work(job, message))

    @handles(EndJob)
    async def on_end_job(self, message: EndJob) -> None:
        """Stop pulling for the job."""
        if self._job is not None and self._job.id == message.job_id:
            self._job = None

    async def _work(self, job: _Job, grant: ScoreGrant) -> None:
        answer = await self._score(job, grant)
        if self._job is not job:
            return
        if isinstance(answer, Scored):
            await insist(
                self,
                lambda: job.membership.dispatcher,
                answer,
                wanted=lambda: self._job is job,
            )
        else:
            try_tell(self, job.membership.dispatcher, answer)
        del job.leases[grant.lease]
        job.closed.add(grant.lease)
        if self._job is job:
            self._pull(job)

    async def _score(self, job: _Job, grant: ScoreGrant) -> Scored | ScoreFailed:
        name, epoch = self._context.name, self._context.epoch
        try:
            images = unpack(await fetch(grant.bundle))["images"].numpy()[list(grant.rows)]
            with self._context.busy("score", f"{len(grant.rows)} images"):
                rewards = await self._context.on_scorer(
                    lambda: job.scorer.score(images, grant.prompts)
                )
            _check(rewards, len(grant.rows))
        except Exception as error:  # whatever a scorer raises costs an attempt, not the worker
            return ScoreFailed(name, epoch, grant.lease, f"{type(error).__name__}: {error}")
        return Scored(name, epoch, grant.lease, tuple(rewards))

    def _pull(self, job: _Job) -> None:
        pull = PullScores(
            self._context.name,
            self._context.epoch,
            self.ref,
            credits=_CREDITS,
            leases=tuple(job.leases),
        )
        try_tell(self, job.membership.dispatcher, pull)

    async def _keep_pulling(self) -> None:
        while True:
            await asyncio.sleep(_PULL_S)
            if self._job is not None:
                self._pull(self._job)


def _check(rewards: list[float], wanted: int) -> None:
    """A scorer that answers nonsense has failed."""
    if len(rewards) != wanted or not all(0.0 <= reward <= 1.0 for reward in rewards):
        raise ScoringError(
            f"the scorer gave {rewards} for {wanted} images; rewards must be in [0, 1]"
        )
