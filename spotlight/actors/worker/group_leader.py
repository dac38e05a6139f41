"""A group leader: pulls requests for an SP group, and delivers what became of them.

Messages in: PrepareJob, HoldWeights, FormGroup, EndJob, Drain, AreYouThere (node); Grant, Revoke,
Recall (dispatcher); CommitSteps, Completed, ReturnLease, LeaseFailed, GroupReady, GroupFailed (its
member); HeldVersions (leaders of its followers).
Messages out: Pull, CommitSteps, Completed, ReturnLease, LeaseFailed (dispatcher); CannotServe (job
runner); PrepareJob, HoldWeights, FormGroup, Grant, Revoke, Recall, Drain, EndJob (member); Drained,
Alive, GroupFailed (node); HeldVersions (the leader of rank 0).

Every worker has a leader. The one whose member has rank 0 pulls for the group; the others say what
their members hold, and take nothing. What dispatcher and member say to each other is passed on as
it is.

Invariants:
- It pulls only once the group has formed and all its members have acknowledged a weights version,
  and names exactly the versions that all of them hold.
- Its pulls renew its leases, so only while this loop turns.
- What is completed or committed is delivered until the dispatcher acknowledges it, to the one that
  the latest `PrepareJob` of the job names; a coordinator may be away for two minutes.
- Before a lease is given back, its latest commit is delivered.
- A lease begins once: a grant that comes twice, or after its revocation, changes nothing.
- No handler waits, so it always answers its node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from spotlight.actors.protocol import (
    Alive,
    AreYouThere,
    CannotServe,
    CommitSteps,
    Completed,
    Drain,
    Drained,
    EndJob,
    FormGroup,
    Grant,
    GroupFailed,
    GroupReady,
    HeldLease,
    HeldVersions,
    HoldWeights,
    LeaseFailed,
    Membership,
    PrepareJob,
    Pull,
    Recall,
    ReturnLease,
    Revoke,
    StateChanged,
)
from spotlight.actors.protocol.delivery import insist, try_tell
from spotlight.actors.runtime import Actor, ActorRef, Message, handles
from spotlight.actors.runtime.bounded_set import BoundedSet
from spotlight.actors.worker.sp_group_view import SPGroupView
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import ActorError
from spotlight.types import WorkerState

log = structlog.get_logger(__name__)

_CREDITS = 2
_PROMPTS = 64
_CLOSED_LEASES = 1024


@dataclass
class _Lease:
    number: int
    requests: tuple[str, ...]
    unsaved: CommitSteps | None = None
    """The latest commit that the dispatcher has not acknowledged."""
    end: Completed | ReturnLease | LeaseFailed | None = None
    delivering: bool = False


@dataclass
class _Job:
    id: str
    membership: Membership
    batch: int
    rollout_versions: set[int] = field(default_factory=set)
    evaluation_versions: set[int] = field(default_factory=set)
    leases: dict[int, _Lease] = field(default_factory=dict)
    closed: BoundedSet[int] = field(default_factory=lambda: BoundedSet(_CLOSED_LEASES))
    """Leases that are over, or were revoked before they came."""
    prompts: BoundedSet[str] = field(default_factory=lambda: BoundedSet(_PROMPTS))


class GroupLeader(Actor):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext, member: ActorRef) -> None:
        self._context = context
        self._member = member
        self._load_limit_s = context.timings.worker.load_limit_s
        self._job: _Job | None = None
        self._group = SPGroupView(context.name)
        self._node: ActorRef | None = None
        self._draining_for: ActorRef | None = None
        """The node that wants to hear when nothing is left here."""

    async def started(self) -> None:
        """Pull regularly, for as long as this loop turns."""
        self.run_task(self._keep_pulling())

    # --- who may say what ---

    def _from_node(self, message: Message) -> bool:
        return self.sender_address == self._context.node

    def _from_dispatcher(self, message: Message) -> bool:
        return self._job is not None and self.sender == self._job.membership.dispatcher

    def _from_member(self, message: Message) -> bool:
        return self.sender == self._member

    # --- the job ---

    @handles(PrepareJob, only=_from_node)
    async def on_prepare(self, message: PrepareJob) -> None:
        """Have the member load the model; or, for the same job, go on for a coordinator that came
        back.
        """
        self._node = self.sender
        job, membership = self._job, message.membership
        if job is None or job.id != message.job_id:
            job = self._job = _Job(message.job_id, membership, message.job.sampler.micro_batch)
            log.debug("job_begun", actor="leader")
        elif job.membership == membership:
            self._pull(job)  # the node joined again: nothing here has changed
            return
        if job.membership.runner != membership.runner:
            # It may have gone back to a checkpoint, and its versions may be other weights.
            job.rollout_versions.clear()
            job.evaluation_versions.clear()
        job.membership = membership

        def report(state: WorkerState, detail: str) -> None:
            try_tell(self, membership.runner, StateChanged(self._context.name, state, detail))

        self._context.report_to(report)
        self._pull(job)
        self.run_task(self._have_loaded(message))

    @handles(HoldWeights, only=_from_node)
    async def on_hold_weights(self, message: HoldWeights) -> None:
        """Pull with the new version once the member acknowledges it."""
        if self._job is not None and self._job.id == message.job_id:
            self.run_task(self._hold_weights(self._job, message))

    @handles(EndJob, only=_from_node)
    async def on_end_job(self, message: EndJob) -> None:
        """Stop pulling for the job."""
        if self._job is not None and self._job.id == message.job_id:
            self._job = None
            log.debug("job_forgotten", actor="leader")
            self.tell(self._member, message)
            self._say_if_drained()

    async def _have_loaded(self, message: PrepareJob) -> None:
        try:
            await self.ask(
                self._member, message, timeout_s=self._context.timings.worker.load_limit_s
            )
        except ActorError as error:
            log.error("model_not_loaded", reason=str(error))
            cannot = CannotServe(self._context.name, str(error))
            try_tell(self, message.membership.runner, cannot)

    async def _hold_weights(self, job: _Job, message: HoldWeights) -> None:
        try:
            await self.ask(
                self._member, message, timeout_s=self._context.timings.worker.load_limit_s
            )
        except ActorError as error:
            # Not acknowledged, so not served; the next version may be.
            log.error("weights_not_held", version=message.version, reason=str(error))
            return
        keep = set(message.keep)
        job.rollout_versions = (job.rollout_versions | {message.version}) & keep
        if message.evaluation is not None:
            job.evaluation_versions.add(message.version)
        job.evaluation_versions &= keep
        if self._node is not None and self._job is job:
            try_tell(self, self._node, self._alive())
        self._pull(job)

    # --- the group ---

    @handles(FormGroup, only=_from_node)
    async def on_form_group(self, message: FormGroup) -> None:
        """The member takes another seat; what it holds but does not lead goes back."""
        self._node = self.sender
        if not self._group.take(message):
            log.info("old_epoch_refused", epoch=message.epoch, now=self._group.epoch)
            return
        log.debug("group_ordered", order=message)
        self.tell(self._member, message)
        self._pull_if_job()

    @handles(GroupReady, only=_from_member)
    async def on_group_ready(self, message: GroupReady) -> None:
        """Pull for the group, or tell its leader what the member holds."""
        if self._group.form(message.epoch):
            log.info("group_formed", epoch=message.epoch, seconds=round(message.seconds, 4))
            self._pull_if_job()

    @handles(GroupFailed, only=_from_member)
    async def on_group_failed(self, message: GroupFailed) -> None:
        """The node must plan another."""
        if self._group.fail(message):
            log.debug("group_lost", epoch=message.epoch)
            self._report_failure()
            self._pull_if_job()

    @handles(HeldVersions)
    async def on_held_versions(self, message: HeldVersions) -> None:
        """What a follower's member holds."""
        if self._group.hear(message, self.sender):
            self._pull_if_job()
        else:
            log.info("old_epoch_refused", epoch=message.epoch, worker=message.worker)

    def _report_failure(self) -> None:
        if self._group.failure is not None and self._node is not None:
            try_tell(self, self._node, self._group.failure)

    def _pull_if_job(self) -> None:
        if self._job is not None:
            self._pull(self._job)

    def _alive(self) -> Alive:
        job = self._job
        return Alive(
            self._context.name,
            self._group.epoch,
            job.id if job is not None and job.rollout_versions else "",
            self._draining_for is not None,
            not self._group.formed,
        )

    # --- leases ---

    @handles(Grant, only=_from_dispatcher)
    async def on_grant(self, message: Grant) -> None:
        """Hand the batch to the member; it queues at most one behind the one it works on."""
        job, number = self._job, message.lease
        if job is None:
            return
        if number in job.leases or number in job.closed:
            log.info("grant_ignored", lease=number)
            return
        if self._draining_for is not None or self._group.first is not None:
            self._give_back(job, number)
            return
        job.leases[number] = _Lease(number, tuple(request.id for request in message.requests))
        for request in message.requests:
            job.prompts.add(request.prompt)
        self.tell(self._member, message)
        self._pull(job)  # should this batch end the process, it is known who had it

    @handles(Revoke, only=_from_dispatcher)
    async def on_revoke(self, message: Revoke) -> None:
        """Stop working on what nobody wants."""
        if self._job is None:
            return
        for number in message.leases:
            self._job.closed.add(number)
            self._job.leases.pop(number, None)
        self.tell(self._member, message)
        self._pull(self._job)
        self._say_if_drained()

    @handles(Recall, only=_from_dispatcher)
    async def on_recall(self, message: Recall) -> None:
        """Others are free to go on with these."""
        if self._job is not None:
            self.tell(self._member, message)

    @handles(CommitSteps, only=_from_member)
    async def on_commit_steps(self, message: CommitSteps) -> None:
        """Make the commit known, so that others can go on from it."""
        job = self._job
        if job is not None and message.lease in job.leases:
            lease = job.leases[message.lease]
            lease.unsaved = message
            self._deliver(job, lease)

    @handles(Completed, ReturnLease, LeaseFailed, only=_from_member)
    async def on_end(self, message: Completed | ReturnLease | LeaseFailed) -> None:
        """Deliver, or give back what others must go on with."""
        job = self._job
        if job is not None and message.lease in job.leases:
            lease = job.leases[message.lease]
            lease.end = message
            if not _leaves_commits(message):
                lease.unsaved = None
            self._deliver(job, lease)

    def _deliver(self, job: _Job, lease: _Lease) -> None:
        if not lease.delivering:
            lease.delivering = True
            self.run_task(self._deliver_all(job, lease))

    async def _deliver_all(self, job: _Job, lease: _Lease) -> None:
        """One after the other: the latest commit, and what ends the lease."""
        while self._holds(job, lease):
            if lease.unsaved is not None:
                await self._save(job, lease, lease.unsaved)
            elif isinstance(lease.end, Completed):
                await self._insist(job, lease.end, lambda: self._holds(job, lease))
                self._close(job, lease.number)
            elif lease.end is not None:
                try_tell(self, job.membership.dispatcher, lease.end)
                self._close(job, lease.number)
            else:
                break
        lease.delivering = False

    async def _save(self, job: _Job, lease: _Lease, commit: CommitSteps) -> None:
        await self._insist(job, commit, lambda: self._holds(job, lease) and lease.unsaved is commit)
        if lease.unsaved is commit:
            lease.unsaved = None

    async def _insist(self, job: _Job, message: Message, wanted: Callable[[], bool]) -> None:
        await insist(
            self,
            lambda: job.membership.dispatcher,
            message,
            wanted=wanted,
            timings=self._context.timings.delivery,
        )

    def _give_back(self, job: _Job, number: int) -> None:
        back = ReturnLease(self._context.name, self._context.epoch, number)
        try_tell(self, job.membership.dispatcher, back)
        self._close(job, number)

    def _holds(self, job: _Job, lease: _Lease) -> bool:
        return self._job is job and job.leases.get(lease.number) is lease

    def _close(self, job: _Job, number: int) -> None:
        """The lease is over, whoever ended it."""
        job.closed.add(number)
        job.leases.pop(number, None)
        if self._job is job:
            self._pull(job)
            self._say_if_drained()

    # --- the node ---

    @handles(AreYouThere, only=_from_node)
    async def on_are_you_there(self, message: AreYouThere) -> Alive:
        """This loop turns."""
        self._report_failure()  # it may have been lost: there is no other group yet
        return self._alive()

    @handles(Drain, only=_from_node)
    async def on_drain(self, message: Drain) -> None:
        """Take nothing more, and say when nothing is left; or go on as before."""
        self._draining_for = self.sender if message.stop_in_s is not None else None
        log.debug("takes_nothing_more", draining=self._draining_for is not None)
        self.tell(self._member, message)
        if self._job is not None:
            self._pull(self._job)
        self._say_if_drained()

    def _say_if_drained(self) -> None:
        if self._draining_for is not None and not (self._job and self._job.leases):
            drained = Drained(self._context.name, self._context.epoch)
            try_tell(self, self._draining_for, drained)

    # --- pulling ---

    def _pull(self, job: _Job) -> None:
        """Say where the group stands; a follower says what it holds, and pulls only for what it
        has not given back yet.
        """
        first = self._group.first
        if first is not None and self._group.formed:
            rollout, evaluation = sorted(job.rollout_versions), sorted(job.evaluation_versions)
            held = HeldVersions(
                self._group.epoch, self._context.name, tuple(rollout), tuple(evaluation)
            )
            try_tell(self, first.leader, held)
        if not job.rollout_versions and not job.evaluation_versions and not job.leases:
            return
        serves = self._group.serves(job.rollout_versions, job.evaluation_versions)
        takes_more = self._draining_for is None and any(serves)
        try_tell(
            self,
            job.membership.dispatcher,
            Pull(
                worker=self._context.name,
                epoch=self._context.epoch,
                members=0 if first is not None else 1 + len(self._group.followers),
                credits=_CREDITS if takes_more else 0,
                batch=job.batch,
                rollout_versions=tuple(sorted(serves[0])),
                evaluation_versions=tuple(sorted(serves[1])),
                prompts=tuple(job.prompts),
                leases=tuple(HeldLease(it.number, it.requests) for it in job.leases.values()),
                followers=self._group.followers,
            ),
        )

    async def _keep_pulling(self) -> None:
        while True:
            await asyncio.sleep(self._context.timings.worker.pull_s)
            if self._job is not None:
                self._pull(self._job)


def _leaves_commits(end: Completed | ReturnLease | LeaseFailed) -> bool:
    """Whether others go on from the last commit after this."""
    if isinstance(end, LeaseFailed):
        return end.what == "scoring"
    return isinstance(end, ReturnLease)
