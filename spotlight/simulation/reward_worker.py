"""The reward worker of a simulated cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

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
from spotlight.actors.runtime import Actor, handles
from spotlight.actors.worker_state import WorkerContext
from spotlight.errors import TransferFailed
from spotlight.simulation import physics
from spotlight.simulation.plant import Plant, fetch_bundle

_CREDITS = 2
_PULL_S = 4.0


@dataclass
class _Job:
    id: str
    membership: Membership
    leases: dict[int, ScoreGrant] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)


class SimulatedRewardWorker(Actor):
    """Stands where a `RewardWorker` does."""

    def __init__(self, context: WorkerContext, plant: Plant) -> None:
        self._context = context
        self._plant = plant
        self._job: _Job | None = None

    async def started(self) -> None:
        self.run_task(self._keep_pulling())

    @handles(PrepareJob)
    async def on_prepare(self, message: PrepareJob) -> Acknowledged:
        if self._job is None or self._job.id != message.job_id:
            self._job = _Job(message.job_id, message.membership)
        self._job.membership = message.membership
        self._pull(self._job)
        return Acknowledged()

    @handles(ScoreGrant)
    async def on_score_grant(self, message: ScoreGrant) -> None:
        job = self._job
        if job is None or self.sender != job.membership.dispatcher:
            return
        if message.lease not in job.leases and message.lease not in job.closed:
            job.leases[message.lease] = message
            self.run_task(self._work(job, message))

    @handles(EndJob)
    async def on_end_job(self, message: EndJob) -> None:
        if self._job is not None and self._job.id == message.job_id:
            self._job = None

    async def _work(self, job: _Job, grant: ScoreGrant) -> None:
        answer = await self._score(grant)
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

    async def _score(self, grant: ScoreGrant) -> Scored | ScoreFailed:
        name, epoch, plant = self._context.name, self._context.epoch, self._plant
        try:
            bundle = await fetch_bundle(plant, grant.bundle)
        except TransferFailed as error:
            return ScoreFailed(name, epoch, grant.lease, str(error))
        rows = [bundle.rows[index] for index in grant.rows]
        with self._context.busy("score", f"{len(rows)} images"):
            await asyncio.sleep(plant.timings.score_s)
        if tuple(row.request.prompt for row in rows) != grant.prompts:
            plant.history.violation(f"score lease {grant.lease} pairs images with other prompts")
        if any(plant.scorer_fails(row.request) for row in rows):
            plant.history.took_effect("scorer_error", worker=name, request=rows[0].request.id)
            return ScoreFailed(name, epoch, grant.lease, "the scorer is out of order")
        return Scored(name, epoch, grant.lease, tuple(physics.reward(row.latents) for row in rows))

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
