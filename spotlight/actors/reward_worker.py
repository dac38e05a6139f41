"""A reward worker: pulls denoised batches and scores them in its own thread, while others still
denoise.

Messages in: PrepareJob, EndJob, ScoreGrant. Messages out: PullScores, RenewLease, Scored,
ScoreFailed.

A failure is reported as a failure; it never becomes a reward.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from spotlight.actors.delivery import try_tell
from spotlight.actors.messages import (
    Acknowledged,
    EndJob,
    PrepareJob,
    PullScores,
    RenewLease,
    Scored,
    ScoreFailed,
    ScoreGrant,
)
from spotlight.actors.runtime import Actor, ActorRef, handles
from spotlight.actors.worker_state import WorkerContext
from spotlight.errors import ActorError, ScoringError
from spotlight.jobs import RewardSpec
from spotlight.rewards.base import Scorer, build_scorer
from spotlight.transport.tensors import fetch
from spotlight.transport.tensors.bundles import unpack

log = structlog.get_logger(__name__)

_CREDITS = 2
_RENEW_S = 4.0
_DELIVERY_LIMIT_S = 10.0


@dataclass
class _Job:
    id: str
    dispatcher: ActorRef
    scorer: Scorer
    leases: set[int] = field(default_factory=set)


class RewardWorker(Actor):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._job: _Job | None = None
        self._scorers: dict[RewardSpec, Scorer] = {}

    async def started(self) -> None:
        """Renew what is held, for as long as this loop turns."""
        self.run_task(self._renew_leases())

    @handles(PrepareJob)
    async def on_prepare(self, message: PrepareJob) -> Acknowledged:
        """Build the scorer, unless it is there already, and begin to pull."""
        spec = message.job.reward
        if spec not in self._scorers:
            self._scorers[spec] = await self._context.on_scorer(lambda: build_scorer(spec))
        membership = message.membership
        job = self._job
        if job is None or job.id != message.job_id:
            job = _Job(message.job_id, membership.dispatcher, self._scorers[spec])
            self._job = job
        pull = PullScores(self._context.name, self._context.epoch, self.ref, credits=_CREDITS)
        try_tell(self, job.dispatcher, pull)
        return Acknowledged()

    @handles(ScoreGrant)
    async def on_score_grant(self, message: ScoreGrant) -> None:
        """Score a batch; the answer is a message."""
        if self._job is not None:
            self.run_task(self._score(self._job, message))

    @handles(EndJob)
    async def on_end_job(self, message: EndJob) -> None:
        """Stop pulling for the job."""
        if self._job is not None and self._job.id == message.job_id:
            self._job = None

    async def _score(self, job: _Job, grant: ScoreGrant) -> None:
        job.leases.add(grant.lease)
        answer: Scored | ScoreFailed
        try:
            images = unpack(await fetch(grant.bundle))["images"].numpy()[list(grant.rows)]
            with self._context.busy("score", f"{len(grant.rows)} images"):
                rewards = await self._context.on_scorer(
                    lambda: job.scorer.score(images, grant.prompts)
                )
            _check(rewards, len(grant.rows))
            answer = Scored(self._context.name, self._context.epoch, grant.lease, tuple(rewards))
        except Exception as error:  # whatever a scorer raises costs an attempt, not the worker
            reason = f"{type(error).__name__}: {error}"
            answer = ScoreFailed(self._context.name, self._context.epoch, grant.lease, reason)
        try:
            if isinstance(answer, Scored):
                await self.ask(job.dispatcher, answer, timeout_s=_DELIVERY_LIMIT_S)
            else:
                try_tell(self, job.dispatcher, answer)
        except ActorError as error:
            log.warning("score_not_delivered", lease=grant.lease, error=str(error))
        job.leases.discard(grant.lease)

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            if self._job is None:
                continue
            for lease in self._job.leases:
                renewal = RenewLease(self._context.name, self._context.epoch, lease, "score")
                try_tell(self, self._job.dispatcher, renewal)


def _check(rewards: list[float], wanted: int) -> None:
    """A scorer that answers nonsense has failed."""
    if len(rewards) != wanted or not all(0.0 <= reward <= 1.0 for reward in rewards):
        raise ScoringError(
            f"the scorer gave {rewards} for {wanted} images; rewards must be in [0, 1]"
        )
