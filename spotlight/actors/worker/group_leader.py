"""A group leader: pulls requests for an SP group, and delivers their results.

Messages in: WorkerPlan (node); Grant, Revoke, Recall (dispatcher); WorkerReport, CommitSteps,
Completed, ReturnLease, LeaseFailed (its member); WorkerReport (leaders of its followers).
Messages out: Pull, CommitSteps, Completed, ReturnLease, LeaseFailed (dispatcher); WorkerPlan,
Grant, Revoke, Recall (member); WorkerPlan (trainer rank); WorkerReport (node, job runner, and the
leader of rank 0).

Every worker has a leader. The one whose member has rank 0 pulls for the group; the others say what
their members hold, and take nothing. What node, dispatcher, member and trainer rank say to each
other is passed on as it is.

Invariants:
- It pulls only once the group has formed and all its members have reported a weights version, and
  names exactly the versions that all of them hold.
- Its pulls renew its leases, so only while this loop turns.
- What is completed or committed is delivered until the dispatcher acknowledges it, to the one that
  the latest plan of the job names; a coordinator may be away for two minutes.
- Before a lease is given back, its latest commit is delivered.
- A lease begins once: a grant that comes twice, or after its revocation, changes nothing.
- No handler waits, so it always answers its node.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from spotlight.actors.protocol.delivery import insist, try_tell
from spotlight.actors.protocol.down import Grant, JobPlan, Membership, Recall, Revoke, WorkerPlan
from spotlight.actors.protocol.up import (
    CommitSteps,
    Completed,
    HeldLease,
    LeaseFailed,
    Pull,
    ReturnLease,
    WorkerReport,
)
from spotlight.actors.runtime import Actor, ActorRef, Message, handles
from spotlight.actors.runtime.bounded_set import BoundedSet
from spotlight.actors.worker.sp_group_view import SPGroupView
from spotlight.actors.worker.worker_state import WorkerContext

log = structlog.get_logger(__name__)

_CREDITS = 2
REPORT_EVERY = 4
"""Pulls between two reports to the job runner in which nothing is new."""
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
    has_pulled: bool = False
    leases: dict[int, _Lease] = field(default_factory=dict)
    closed: BoundedSet[int] = field(default_factory=lambda: BoundedSet(_CLOSED_LEASES))
    """Leases that are over, or were revoked before they came."""
    prompts: BoundedSet[str] = field(default_factory=lambda: BoundedSet(_PROMPTS))


class GroupLeader(Actor):
    """See the module's docstring."""

    def __init__(self, context: WorkerContext, member: ActorRef, trainer_rank: ActorRef) -> None:
        self._context = context
        self._member = member
        self._trainer_rank = trainer_rank
        self._node: ActorRef | None = None
        self._plan = WorkerPlan(0)
        """The latest plan."""
        self._job: _Job | None = None
        self._group = SPGroupView(context.name)
        self._of_member = WorkerReport(context.name, context.epoch)
        """What the member reported last."""
        self._told = self._of_member
        """What the others were told last."""

    async def started(self) -> None:
        """Pull regularly, for as long as this loop turns."""
        self._context.report_to(self._tell_if_changed)
        self.run_task(self._keep_pulling())

    # --- who may say what ---

    def _from_node(self, message: Message) -> bool:
        return self.sender_address == self._context.node

    def _from_dispatcher(self, message: Message) -> bool:
        return self._job is not None and self.sender == self._job.membership.dispatcher

    def _from_member(self, message: Message) -> bool:
        return self.sender == self._member

    # --- plan and report ---

    @handles(WorkerPlan, only=_from_node)
    async def on_plan(self, message: WorkerPlan) -> WorkerReport:
        """Follow it, unless it is an old one; that this is answered says that the loop turns."""
        self._node = self.sender
        if message.number > self._plan.number and self._knows_enough(message.job):
            self._follow(message)
        return self._report()

    @handles(WorkerReport)
    async def on_report(self, message: WorkerReport) -> None:
        """What the member has and does, or what the member of a follower holds."""
        if self.sender == self._member:
            self._note_member(message)
        elif self._group.note_follower(message, self.sender):
            self._pull_if_job()
        else:
            log.info("old_epoch_refused", epoch=message.group, worker=message.worker)

    def _knows_enough(self, job: JobPlan | None) -> bool:
        """Whether the plan says all that is needed: of a job that is new here, the spec too."""
        known = self._job is not None and job is not None and self._job.id == job.job_id
        return job is None or known or job.spec is not None

    def _follow(self, plan: WorkerPlan) -> None:
        self._plan = plan
        log.debug("plan_followed", number=plan.number)
        self._set_job(plan.job)
        if plan.group is not None and self._group.plan(plan.group):
            log.debug("group_ordered", order=plan.group)
        log.debug("takes_nothing_more", draining=self._draining)
        self.tell(self._member, plan)
        self.tell(self._trainer_rank, plan)
        self._pull_if_job()
        self._tell_if_changed()

    def _set_job(self, plan: JobPlan | None) -> None:
        """Another job; or the same, perhaps for a coordinator that came back."""
        runner = self._job.membership.runner if self._job is not None else None
        if plan is None:
            if self._job is not None:
                log.debug("job_forgotten", actor="leader", job=self._job.id)
            self._job = None
        elif self._job is None or self._job.id != plan.job_id:
            assert plan.spec is not None, "the first plan of a job carries its spec"
            self._job = _Job(plan.job_id, plan.membership, plan.spec.sampler.micro_batch)
            log.debug("job_begun", actor="leader", job=plan.job_id)
        else:
            self._job.membership = plan.membership
        if self._job is not None and self._job.membership.runner != runner:
            # It may have gone back to a checkpoint, and its versions may be other weights.
            self._job.rollout_versions.clear()
            self._job.evaluation_versions.clear()
            self._of_member = msgspec.structs.replace(self._of_member, cannot_serve="")
            self._told = WorkerReport(self._context.name, self._context.epoch)

    def _note_member(self, report: WorkerReport) -> None:
        if report.plan != self._plan.number:
            return  # it says the same of the latest plan in a moment
        self._of_member = report
        self._group.note_member(report)
        if self._job is not None and self._job.id == report.job_id:
            self._job.rollout_versions = set(report.rollout)
            self._job.evaluation_versions = set(report.evaluation)
        self._pull_if_job()
        self._tell_if_changed()

    def _report(self) -> WorkerReport:
        job, draining = self._job, self._draining
        state, detail = self._context.state
        of_member = self._of_member
        if of_member.group != self._group.epoch:  # why that one failed is of no interest
            of_member = msgspec.structs.replace(of_member, failure="", culprits=())
        return msgspec.structs.replace(
            of_member,
            plan=self._plan.number,
            job_id=job.id if job is not None else "",
            rollout=tuple(sorted(job.rollout_versions)) if job is not None else (),
            evaluation=tuple(sorted(job.evaluation_versions)) if job is not None else (),
            group=self._group.epoch,
            formed=self._group.formed,
            draining=draining,
            drained=draining and not (job and job.leases),
            state=state,
            detail=detail,
        )

    def _tell_if_changed(self) -> None:
        """Tell everyone concerned how the worker stands, if that is new."""
        report, before = self._report(), self._told
        if report == before:
            return
        self._told = report
        if self._node is not None:
            try_tell(self, self._node, report)
        if _for_runner(report) != _for_runner(before):
            self._tell_runner(report)

    def _tell_runner(self, report: WorkerReport) -> None:
        if self._job is not None:
            try_tell(self, self._job.membership.runner, report)

    @property
    def _draining(self) -> bool:
        """Whether nothing more is taken, because the node is to leave."""
        return self._plan.stop_in_s is not None

    def _pull_if_job(self) -> None:
        if self._job is not None:
            self._pull(self._job)

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
        if self._draining or not self._serves(job, message):
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
        self._tell_if_changed()

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

    def _serves(self, job: _Job, grant: Grant) -> bool:
        """Not if the weights were dropped, or the group has changed, since it pulled."""
        rollout, evaluation = self._group.serves(job.rollout_versions, job.evaluation_versions)
        first = grant.requests[0]
        return first.weights_version in (evaluation if first.kind == "evaluation" else rollout)

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
            self._tell_if_changed()

    # --- pulling ---

    def _pull(self, job: _Job) -> None:
        """Say where the group stands; a follower says what it holds, and pulls only for what it
        has not given back yet.
        """
        first = self._group.first
        if first is not None and self._group.formed:
            try_tell(self, first.leader, self._report())
        if not (job.rollout_versions or job.evaluation_versions or job.leases or job.has_pulled):
            return  # but once it has pulled, the dispatcher must hear that nothing is held any more
        job.has_pulled = True
        serves = self._group.serves(job.rollout_versions, job.evaluation_versions)
        takes_more = not self._draining and any(serves)
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
        for times in itertools.count(1):
            await asyncio.sleep(self._context.timings.worker.pull_s)
            self._pull_if_job()
            if times % REPORT_EVERY == 0:
                self._tell_runner(self._report())


def _leaves_commits(end: Completed | ReturnLease | LeaseFailed) -> bool:
    """Whether others go on from the last commit after this."""
    if isinstance(end, LeaseFailed):
        return end.what == "scoring"
    return isinstance(end, ReturnLease)


def _for_runner(report: WorkerReport) -> tuple[str, ...]:
    """What the job runner wants to hear at once."""
    return report.job_id, report.cannot_serve, report.state, report.detail
