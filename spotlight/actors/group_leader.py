"""A group leader: forms an SP group, pulls requests for it, and delivers what it denoised.

Messages in: PrepareJob, HoldWeights, EndJob (node); Grant, Revoke (dispatcher); Denoised,
DenoiseError (member).
Messages out: Pull, RenewLease, Completed, DenoiseFailed (dispatcher); PrepareJob, HoldWeights,
Denoise, Revoke (member).

The group is one member here. A leader pulls only once the member has acknowledged a weights
version, and tells the dispatcher exactly which versions it holds. Leases are renewed by this
actor's own loop. A completion that the dispatcher does not acknowledge in time is sent again; the
dispatcher counts it once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from spotlight.actors.delivery import try_tell
from spotlight.actors.messages import (
    Acknowledged,
    Completed,
    Denoise,
    Denoised,
    DenoiseError,
    DenoiseFailed,
    EndJob,
    Grant,
    HoldWeights,
    PrepareJob,
    Pull,
    RenewLease,
    Revoke,
    StateChanged,
    WorkerState,
)
from spotlight.actors.runtime import Actor, ActorRef, handles
from spotlight.actors.worker_state import WorkerContext
from spotlight.errors import ActorDied, ActorError

log = structlog.get_logger(__name__)

_CREDITS = 2
_RENEW_S = 4.0
_LOAD_LIMIT_S = 600.0
_DELIVERY_LIMIT_S = 10.0
_DELIVERY_ATTEMPTS = 6


@dataclass
class _Job:
    id: str
    dispatcher: ActorRef
    batch: int
    rollout_versions: set[int] = field(default_factory=set)
    evaluation_versions: set[int] = field(default_factory=set)
    leases: set[int] = field(default_factory=set)


class GroupLeader(Actor):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext, member: ActorRef) -> None:
        self._context = context
        self._member = member
        self._job: _Job | None = None

    async def started(self) -> None:
        """Renew what is held, for as long as this loop turns."""
        self.run_task(self._renew_leases())

    @handles(PrepareJob)
    async def on_prepare(self, message: PrepareJob) -> Acknowledged:
        """Have the member load the model."""
        membership = message.membership
        if self._job is not None and self._job.id == message.job_id:
            self._pull(self._job)  # the node joined again: nothing here has changed
            return Acknowledged()
        self._job = _Job(message.job_id, membership.dispatcher, message.job.sampler.micro_batch)

        def report(state: WorkerState, detail: str) -> None:
            try_tell(self, membership.ledger, StateChanged(self._context.name, state, detail))

        self._context.report_to(report)
        await self.ask(self._member, message, timeout_s=_LOAD_LIMIT_S)
        return Acknowledged()

    @handles(HoldWeights)
    async def on_hold_weights(self, message: HoldWeights) -> None:
        """Pull with the new version once the member acknowledges it."""
        job = self._job
        if job is None or job.id != message.job_id:
            return
        try:
            await self.ask(self._member, message, timeout_s=_LOAD_LIMIT_S)
        except ActorError as error:
            # Not acknowledged, so not served; the next version may be.
            log.error("weights_not_held", version=message.version, reason=str(error))
            return
        keep = set(message.keep)
        job.rollout_versions = (job.rollout_versions | {message.version}) & keep
        if message.evaluation is not None:
            job.evaluation_versions.add(message.version)
        job.evaluation_versions &= keep
        self._pull(job)

    @handles(Grant)
    async def on_grant(self, message: Grant) -> None:
        """Hand the batch to the member; it queues at most one behind the one it works on."""
        if self._job is None:
            return
        self._job.leases.add(message.lease)
        self.tell(self._member, Denoise(message.lease, message.requests))

    @handles(Revoke)
    async def on_revoke(self, message: Revoke) -> None:
        """Stop working on what nobody wants."""
        if self._job is not None:
            self._job.leases.difference_update(message.leases)
            self.tell(self._member, message)

    @handles(Denoised)
    async def on_denoised(self, message: Denoised) -> None:
        """Deliver; the next grant follows from the completion."""
        if self._job is not None and message.lease in self._job.leases:
            self.run_task(self._complete(self._job, message))

    @handles(DenoiseError)
    async def on_denoise_error(self, message: DenoiseError) -> None:
        """Give the lease back."""
        job = self._job
        if job is not None and message.lease in job.leases:
            job.leases.discard(message.lease)
            failed = DenoiseFailed(
                self._context.name, self._context.epoch, message.lease, message.error
            )
            try_tell(self, job.dispatcher, failed)

    @handles(EndJob)
    async def on_end_job(self, message: EndJob) -> None:
        """Stop pulling for the job."""
        if self._job is not None and self._job.id == message.job_id:
            self._job = None
            self.tell(self._member, message)

    async def _complete(self, job: _Job, message: Denoised) -> None:
        completed = Completed(
            self._context.name, self._context.epoch, message.lease, message.bundle, message.seconds
        )
        for _ in range(_DELIVERY_ATTEMPTS):
            try:
                await self.ask(job.dispatcher, completed, timeout_s=_DELIVERY_LIMIT_S)
                break
            except ActorDied:
                break  # the job is over
            except ActorError as error:
                log.warning("delivery_failed", lease=message.lease, error=str(error))
                await asyncio.sleep(1.0)
        job.leases.discard(message.lease)

    def _pull(self, job: _Job) -> None:
        try_tell(
            self,
            job.dispatcher,
            Pull(
                worker=self._context.name,
                epoch=self._context.epoch,
                leader=self.ref,
                credits=_CREDITS,
                batch=job.batch,
                rollout_versions=tuple(sorted(job.rollout_versions)),
                evaluation_versions=tuple(sorted(job.evaluation_versions)),
            ),
        )

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            if self._job is None:
                continue
            for lease in self._job.leases:
                renewal = RenewLease(self._context.name, self._context.epoch, lease, "denoise")
                try_tell(self, self._job.dispatcher, renewal)
