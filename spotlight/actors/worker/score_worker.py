"""What every reward worker does, whatever it scores with: it pulls denoised batches, keeps its
leases alive and delivers rewards.

Messages in: PrepareJob, EndJob, ScoreGrant. Messages out: PullScores, Scored, ScoreFailed.

A failure is reported as a failure; it never becomes a reward. Pulls renew the leases that they
list; rewards are delivered until the dispatcher acknowledges them, to the one that the latest
`PrepareJob` of the job names. A lease begins once, however often its grant comes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import structlog

from spotlight.actors.protocol import (
    Acknowledged,
    EndJob,
    Membership,
    PrepareJob,
    PullScores,
    Scored,
    ScoreFailed,
    ScoreGrant,
)
from spotlight.actors.protocol.delivery import insist, try_tell
from spotlight.actors.runtime import Actor, Message, handles
from spotlight.actors.runtime.bounded_set import Recent
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.jobs import RewardSpec

log = structlog.get_logger(__name__)

_CREDITS = 2
_PULL_S = 4.0
_CLOSED_LEASES = 1024


@dataclass(eq=False)
class ScoringJob:
    """A job at a reward worker."""

    id: str
    membership: Membership
    reward: RewardSpec
    leases: dict[int, ScoreGrant] = field(default_factory=dict)
    closed: Recent[int] = field(default_factory=lambda: Recent(_CLOSED_LEASES))


class ScoreWorker(Actor, ABC):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._job: ScoringJob | None = None

    # --- what a subclass knows ---

    @abstractmethod
    async def _prepare(self, reward: RewardSpec) -> None:
        """Be ready to score for a job, if that is not so already."""

    @abstractmethod
    async def _score(self, job: ScoringJob, grant: ScoreGrant) -> Scored | ScoreFailed:
        """Score a batch."""

    # --- what all do ---

    async def started(self) -> None:
        """Pull regularly, for as long as this loop turns."""
        self.run_task(self._keep_pulling())

    def _from_node(self, message: Message) -> bool:
        return self.sender_address == self._context.node

    def _from_dispatcher(self, message: Message) -> bool:
        return self._job is not None and self.sender == self._job.membership.dispatcher

    @handles(PrepareJob, only=_from_node)
    async def on_prepare(self, message: PrepareJob) -> Acknowledged:
        """Begin to pull; or, for the same job, go on for a coordinator that came back."""
        await self._prepare(message.job.reward)
        if self._job is None or self._job.id != message.job_id:
            self._job = ScoringJob(message.job_id, message.membership, message.job.reward)
        self._job.membership = message.membership
        self._pull(self._job)
        return Acknowledged()

    @handles(ScoreGrant, only=_from_dispatcher)
    async def on_score_grant(self, message: ScoreGrant) -> None:
        """Score a batch; the answer is a message."""
        job = self._job
        if job is None:
            return
        if message.lease in job.leases or message.lease in job.closed:
            log.info("grant_ignored", lease=message.lease)
            return
        job.leases[message.lease] = message
        self.run_task(self._work(job, message))
        self._pull(job)  # should this batch end the process, it is known who had it

    @handles(EndJob, only=_from_node)
    async def on_end_job(self, message: EndJob) -> None:
        """Stop pulling for the job."""
        if self._job is not None and self._job.id == message.job_id:
            self._job = None

    async def _work(self, job: ScoringJob, grant: ScoreGrant) -> None:
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

    def _pull(self, job: ScoringJob) -> None:
        pull = PullScores(
            self._context.name,
            self._context.epoch,
            credits=_CREDITS,
            leases=tuple(job.leases),
        )
        try_tell(self, job.membership.dispatcher, pull)

    async def _keep_pulling(self) -> None:
        while True:
            await asyncio.sleep(_PULL_S)
            if self._job is not None:
                self._pull(self._job)
