"""The coordinator: knows the nodes, and the jobs and sessions that share them.

Messages in: NodeReport (nodes), SubmitJob, BeginSession, CancelJob, PreemptNode, DrainNode,
GetStatus, ListJobs (users), Down (a node or a tenant).
Messages out: NodePlan, NodeRefused (nodes), JobAccepted, JobRefused, SessionBegan, SessionRefused,
JobStatus, JobList, JobUnknown, ConsentNeeded (users). A NodeReport is passed on to the tenant for
which the node works, and CancelJob to the one that is meant; a tenant is told by a call that a node
is lost, and calls back when it has ended.

A job is in the queue, on disk, before its submitter is answered, and begins when `admission` says
so; which nodes it gets, the table of the fleet says. A node is the one that its key is known as
(`KeyRing`), and its name is its own for as long as its process is in reach. A job or a session is
that submitter's whose key it came by. When the runner of a job crashes that job has failed, its run
folder stays resumable, and the others go on. When trainers are lost another runner goes on with
the job. When the coordinator itself is killed, the next one on the same runs folder goes on with
all of them, with the nodes that are still there.
"""

from __future__ import annotations

import asyncio
import math
import random
import shutil
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from spotlight.actors.coordinator.accounts import Accounts
from spotlight.actors.coordinator.fleet import Fleet
from spotlight.actors.coordinator.job.job_runner import JobRunner, JobSetup
from spotlight.actors.coordinator.job.mirroring import MirrorPlace
from spotlight.actors.coordinator.key_ring import OPERATOR, REFUSALS_LOG_S, KeyRing
from spotlight.actors.coordinator.node_statuses import became_of, node_statuses
from spotlight.actors.coordinator.session.session_folder import SavedSession, SessionFolder
from spotlight.actors.coordinator.session.session_runner import SessionRunner, SessionSetup
from spotlight.actors.coordinator.submissions import (
    SessionFiles,
    Submission,
    no_room,
    read_interrupted,
    read_session_files,
    read_submission,
)
from spotlight.actors.coordinator.tenant.job_journal import (
    begin_segment,
    identify,
    require_same_prompts,
)
from spotlight.actors.coordinator.tenant.tenant import Surroundings, Tenant
from spotlight.actors.coordinator.tenant.tenant_log import TenantLog
from spotlight.actors.protocol.down import NodePlan, NodeRefused
from spotlight.actors.protocol.sessions import BeginSession, SessionBegan, SessionRefused
from spotlight.actors.protocol.up import NodeReport, WorkerRefs
from spotlight.actors.protocol.users import (
    Acknowledged,
    CancelJob,
    CancelRefused,
    ConsentNeeded,
    DrainNode,
    DrainRefused,
    GetStatus,
    JobAccepted,
    JobEntry,
    JobList,
    JobRefused,
    JobStatus,
    JobUnknown,
    ListJobs,
    NodeStatus,
    NodeUnknown,
    PreemptNode,
    SubmitJob,
    WorkerStatus,
)
from spotlight.actors.runtime import Actor, ActorRef, Down, handles
from spotlight.actors.runtime.abandonable_thread import run_in_abandonable_thread
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.errors import (
    JournalError,
    RequestRefused,
    RunFolderError,
    UnknownJob,
    UserError,
    is_disk_full,
)
from spotlight.permissions import Permissions
from spotlight.policies.fleet.admission import Waiting, admit, why_waits
from spotlight.policies.fleet.allocation import Borrower
from spotlight.policies.fleet.fleet_events import Terms
from spotlight.policies.money.prices import Prices
from spotlight.preflight.budget_checks import check_money
from spotlight.report.rendering import write_report
from spotlight.store.job_queue import JobQueue
from spotlight.store.queued_job import QueuedJob
from spotlight.store.run_folder import RunFolder, artifacts_of
from spotlight.store.runs_folder import RunsFolder
from spotlight.timings import Timings
from spotlight.transport.tensors import ArtifactStore

log = structlog.get_logger(__name__)

Read = TypeVar("Read")
TenantT = TypeVar("TenantT", bound=Tenant)
BegunT = TypeVar("BegunT")

MOST_SUBMISSIONS = 16
"""No more submissions are read at a time."""
MOST_LAST = 100
"""The whole last status is kept of as many jobs that have ended."""
MAILBOX = 8192
"""Thousands of nodes report to the coordinator, and as many workers to the job runner, at times all
at once."""


class Coordinator(Actor):
    """See the module's docstring.

    Args:
        runs: where run folders lie.
        rng: source of job ids and tokens.
        open_store: makes the artifact store of a run from its folder and token.
        keys: whom it knows, and as what.
        timings: how long it and its actors wait.
        mirror: where it copies runs to, if anywhere.
        permissions: what its operator lets jobs do.
        prices: what nodes cost, where neither they nor their job say so.
    """

    def __init__(
        self,
        runs: RunsFolder,
        rng: random.Random,
        open_store: Callable[[Path, str], ArtifactStore],
        keys: KeyRing,
        timings: Timings = Timings(),
        mirror: MirrorPlace | None = None,
        permissions: Permissions = Permissions(),
        prices: Prices | None = None,
    ) -> None:
        self._runs = runs
        self._mirror = mirror
        self._permissions = permissions
        self._prices = prices or Prices()
        self._rng = rng
        self._timings = timings
        self._open_store = open_store
        self._keys = keys
        self._fleet: Fleet
        self._queue: JobQueue
        self._accounts: Accounts
        self._tenants: dict[str, Tenant] = {}
        """The jobs and sessions that run, by id."""
        self._last: dict[str, JobStatus] = {}
        """How those ended that ended lately, by id."""
        self._refusals_log = LimitedLog(log, REFUSALS_LOG_S)
        """The log of users and nodes that are refused: they may try as often as they like."""
        self._submissions = 0
        """How many are being read."""
        self._beginning: dict[str, QueuedJob] = {}
        """Those that are about to run, by id."""
        self._no_room: dict[str, str] = {}
        """Why those of them do not run yet, or not now, that wait for room on the disk, by id."""
        self._waited_for_room: dict[str, tuple[int, float]] = {}
        """The iteration in which a full disk stopped a job last, and its wait in it, by id."""
        self._closing: set[str] = set()
        """The run folders of jobs that have ended, while their reports are written."""
        self._cancels: dict[str, CancelJob] = {}
        """The cancellations of those of them that were cancelled meanwhile, by id."""
        self._sessions: dict[str, tuple[str, asyncio.Task[Any]]] = {}
        """Those that are about to begin, by id, each with its user."""
        self._open_files = ExitStack()

    async def started(self) -> None:
        """Go on with the jobs in the middle of which an earlier coordinator was killed. Raises
        `JournalError` if the queue cannot be used."""
        self._queue = JobQueue.open(self._runs.path)
        self._open_files.callback(self._queue.close)
        self._accounts = Accounts(
            self._runs.path,
            self._queue,
            self._tenants,
            self._prices,
            self._keys.now,
            self._timings.coordinator,
        )
        self.run_task(self._accounts.keep())
        self._fleet = Fleet(self, self, self._timings)
        for node in self._queue.drained:
            self._fleet.drain(node, cancel=False)
        for job in self._queue.live():
            if job.state == "running":
                await self._begin_from_disk(job, came_back=True)
        self._begin_waiting()

    async def stopping(self, reason: str) -> None:
        """The next coordinator goes on with the queue."""
        await self._accounts.close()
        self._open_files.close()

    def aborted(self) -> None:
        """Leave the queue as a kill does."""
        self._accounts.abort()
        self._open_files.close()

    # --- who may say what ---

    def _from_itself(self, message: NodeReport) -> bool:
        names = (worker.worker for worker in message.workers)
        its_own = all(name.rpartition("/")[0] == message.node for name in names)
        return self.sender == message.scheduler and its_own

    def _for_itself(self, message: BeginSession) -> bool:
        return self.sender == message.user

    # --- nodes ---

    @handles(NodeReport, only=_from_itself)
    async def on_node_report(self, message: NodeReport) -> NodePlan | NodeRefused | Acknowledged:
        """A node is there, and says what it has; or it has left after a notice."""
        actors = (ref.address for worker in message.workers for ref in _actors_of(worker))
        problem = self._keys.report(message.node, message.pool, self.sender_address, actors)
        word = msgspec.structs.replace(message, times=())  # nobody else is to compare these
        answer = NodeRefused(problem) if problem else self._fleet.reported(word)
        if isinstance(answer, NodeRefused):
            node, reason = message.node, answer.reason
            self._refusals_log.info("node_refused", about=(node, reason), node=node, reason=reason)
        else:
            self._accounts.report(message)
        self._begin_waiting()
        return answer

    @handles(PreemptNode)
    async def on_preempt(self, message: PreemptNode) -> Acknowledged | NodeUnknown | ConsentNeeded:
        """A user gives a node notice, or withdraws it, from one that has left too."""
        if not (message.cancel or message.yes) and (needed := self._consent_for(message.node)):
            return needed
        if not self._fleet.give_notice(message.node, message.notice_s, cancel=message.cancel):
            return self._node_unknown(message.node)
        return Acknowledged()

    @handles(DrainNode)
    async def on_drain(
        self, message: DrainNode
    ) -> Acknowledged | NodeUnknown | ConsentNeeded | DrainRefused:
        """A user wants a node to have no work, or to have some again."""
        if not (message.cancel or message.yes) and (needed := self._consent_for(message.node)):
            return needed
        table = self._fleet.table
        was_drained = message.cancel and message.node in table.drained
        if message.node not in table.nodes and not was_drained:
            return self._node_unknown(message.node)
        try:
            self._queue.drain(message.node, cancel=message.cancel)
        except JournalError as error:
            return DrainRefused(str(error))
        self._fleet.drain(message.node, cancel=message.cancel)
        return Acknowledged()

    def _node_unknown(self, name: str) -> NodeUnknown:
        gone = became_of(name, self._fleet.table, asyncio.get_running_loop().time())
        return NodeUnknown(tuple(sorted(node.node for node in self._fleet.present())), gone)

    def _consent_for(self, node: str) -> ConsentNeeded | None:
        job = self._fleet.table.cannot_train_without(node)
        if not job:
            return None
        title = self._tenants[job].service.title if job in self._tenants else job
        return ConsentNeeded(
            f"without {node} the job `{title}` cannot train until another reserved node comes; say"
            " --yes to go ahead"
        )

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        """A node is gone, or a tenant crashed."""
        for tenant in self._tenants.values():
            if message.ref == tenant.ref:
                return self._lose_tenant(tenant, message.reason)
        self._accounts.gone(message.ref)
        self._fleet.out_of_reach(message.ref, message.reason, self._keys)

    def node_reported(self, tenant: str, report: NodeReport) -> None:
        """The tenant hears of it, unless it is only beginning."""
        if tenant in self._tenants:
            self.tell(self._tenants[tenant].ref, report)

    def node_lost(self, tenant: str, name: str, reason: str, *, announced: bool) -> None:
        """The tenant hears of it, unless it is only beginning."""
        if tenant in self._tenants:
            self._tenants[tenant].lose_node(name, reason, announced=announced)

    def _lose_tenant(self, tenant: Tenant, reason: str) -> None:
        """Its actor crashed: its folder stays resumable."""
        del self._tenants[tenant.service.id]
        tenant.nodes.forget()
        tenant.log.lines.error("job_runner_ended", reason=reason)
        why = f"the job runner {reason}; see the coordinator's log"
        status = msgspec.structs.replace(tenant.status, outcome="failed", reason=why)
        self._note_end(tenant.service.id, status)

    def take_back_rights(self, name: str) -> None:
        """A node was shown out: it leaves nothing more in the store, and fetches nothing."""
        for tenant in self._tenants.values():
            tenant.store.revoke(name)
            tenant.keepers.shut_out(name)

    # --- submissions ---

    @handles(SubmitJob)
    async def on_submit(self, message: SubmitJob) -> JobRefused | asyncio.Task[Any]:
        """Put the job into the queue, or say why not. Others are served while files are read."""
        if not (user := self._keys.user(self.sender_address)):
            return JobRefused("whoever has this key submits no jobs, or was shown out")
        highest = self._keys.highest_priority(self.sender_address)
        if message.priority > highest:
            return JobRefused(
                f"priority: {message.priority} is above {highest}, the highest of your join token;"
                " give a lower one, or ask an operator for another token"
            )
        if self._submissions >= MOST_SUBMISSIONS:
            return JobRefused("many jobs are being submitted just now; try again in a moment")
        return self.run_task(self._submit(message, user))

    async def _submit(self, message: SubmitJob, user: str) -> JobAccepted | JobRefused:
        self._submissions += 1
        try:
            submission = await self._in_thread(
                lambda: read_submission(message, self._runs, self._permissions)
            )
            check_money(
                submission.job, self._prices, [node.price for node in self._fleet.present()]
            )
            return await self._take(message, submission, user)
        except UserError as error:
            job, reason = message.job.name, str(error)
            self._refusals_log.info("job_refused", about=(job, reason), job=job, reason=reason)
            return JobRefused(str(error))
        except Exception as error:  # whatever is wrong with a job, it ends no coordinator
            log.error("job_not_started", error=repr(error), exc_info=error)
            return JobRefused("the job could not be started; the coordinator's log says why")
        finally:
            self._submissions -= 1

    async def _take(self, message: SubmitJob, submission: Submission, user: str) -> JobAccepted:
        """Into the queue, and begin at once what may."""
        path, job = submission.run_folder, submission.job
        if not message.run_folder:  # another may have come to lie there meanwhile
            path = self._runs.place(job.name, "")
        self._refuse_live(path)
        with ExitStack() as new, ExitStack() as undo:
            if message.resume:
                folder, _ = RunFolder.reopen(path, message.job, message.changes)
            else:
                folder = RunFolder.create(path, job)
                new.enter_context(_kept_unless_refused(path))
            undo.callback(folder.close)
            identity = identify(folder.journal, job.name, self._rng, user)
            if user not in (OPERATOR, identity.owner):
                raise RequestRefused(
                    f"{folder.path} is somebody else's run; whoever submitted it, or an operator,"
                    " can go on with it"
                )
            require_same_prompts(folder.journal, submission.files.prompt_digests)
            queued = QueuedJob(
                id=identity.job_id,
                name=job.name,
                kind="job",
                owner=identity.owner,
                weight=message.weight,
                priority=message.priority,
                ranks=job.training.ranks,
                run_folder=str(path),
                submitted_at=self._keys.now(),
                iterations=job.iterations,
                changes=message.changes,
            )
            former = self._queue.known(queued.id)
            self._queue.add(queued)
            self._last.pop(queued.id, None)
            _log_of(queued).info("job_submitted", run_folder=queued.run_folder)
            if queued.id in self._admitted():
                undo.pop_all()  # `_begin_job` closes it
                begin = self._begin_job(queued, folder, submission, came_back=False)
                await self._begin_or_refuse(queued, begin, former)
        return JobAccepted(queued.id, queued.run_folder)

    def _refuse_live(self, path: Path) -> None:
        if str(path) in self._closing:
            raise RequestRefused(f"the report of {path} is being written; try again in a moment")
        live = self._queue.live_in(path)
        if live is not None:
            raise RequestRefused(
                f"{path} is in the queue already, as the job {live.id}; wait for it, or cancel it"
                f" first (spotlight cancel {live.id})"
            )

    @handles(BeginSession, only=_for_itself)
    async def on_begin_session(
        self, message: BeginSession
    ) -> SessionBegan | SessionRefused | asyncio.Task[Any]:
        """Serve another program's loop, or go on to serve it, or say why not."""
        user = self._keys.user(self.sender_address)
        if not user:
            return SessionRefused("whoever has this key begins no sessions, or was shown out")
        running = self._tenants.get(message.session)
        if isinstance(running, SessionRunner):
            if user not in (OPERATOR, running.service.owner):
                return SessionRefused("the session is somebody else's")
            return running.began
        if message.goes_on:
            ended = self._last.get(message.session, JobStatus())
            return SessionRefused(f"the session has ended: {ended.reason or 'it is over'}")
        if self._submissions >= MOST_SUBMISSIONS:
            return SessionRefused("many jobs are being submitted just now; try again in a moment")
        whose, beginning = self._sessions.get(message.session, (user, None))
        if whose != user:
            return SessionRefused("the session is somebody else's")
        if beginning is None:
            beginning = self.run_task(self._start_session(message, user))
            self._sessions[message.session] = user, beginning
        return beginning

    async def _start_session(
        self, message: BeginSession, user: str
    ) -> SessionBegan | SessionRefused:
        self._submissions += 1
        try:
            work, permissions = message.work, self._permissions
            files = await self._in_thread(lambda: read_session_files(work, permissions))
            return (await self._take_session(message, files, user)).began
        except UserError as error:
            user, reason = str(message.user), str(error)
            self._refusals_log.info("session_refused", about=reason, user=user, reason=reason)
            return SessionRefused(str(error))
        except Exception as error:  # whatever is wrong with a session, it ends no coordinator
            log.error("session_not_started", error=repr(error), exc_info=error)
            return SessionRefused("it could not be started; the coordinator's log says why")
        finally:
            self._submissions -= 1
            del self._sessions[message.session]

    async def _take_session(
        self, message: BeginSession, files: SessionFiles, user: str
    ) -> SessionRunner:
        token = f"{self._rng.getrandbits(128):032x}"
        saved = SavedSession(message.session, message.user, message.work, token, user)
        live = {Path(job.run_folder) for job in self._queue.live()}
        folder = SessionFolder.create(self._runs.path, saved, live)
        with _kept_unless_refused(folder.path), ExitStack() as undo:
            undo.callback(folder.close)
            queued = QueuedJob(
                id=message.session,
                name=f"session-{message.session}",
                kind="session",
                owner=user,
                weight=message.weight,
                priority=0,
                ranks=0,
                run_folder=str(folder.path),
                submitted_at=self._keys.now(),
            )
            self._queue.add(queued)
            undo.pop_all()  # `_begin_session` closes it
            begin = self._begin_session(queued, folder, files, came_back=False)
            return await self._begin_or_refuse(queued, begin)

    # --- questions of users ---

    @handles(CancelJob)
    async def on_cancel(self, message: CancelJob) -> JobStatus | CancelRefused | JobUnknown:
        """Pass it on, or take the job out of the queue; the answer is the status before."""
        try:
            job = self._queue.find(message.job) if message.job else self._only_live()
        except UnknownJob as error:
            return JobUnknown(str(error))
        if job is None:
            return self._latest_status()
        if self._keys.user(self.sender_address) not in (OPERATOR, job.owner):
            return CancelRefused(
                f"`{job.name}` is somebody else's; whoever submitted it, or an operator, can cancel"
                " it"
            )
        before = self._status_of(job)
        if job.id in self._tenants:
            self.tell(self._tenants[job.id].ref, message)
        elif job.id in self._beginning:
            self._cancels[job.id] = message
        elif job.state == "queued":
            self._cancel_queued(job, message.reason)
        return before

    def _cancel_queued(self, job: QueuedJob, reason: str) -> None:
        _log_of(job).info("job_cancelled", reason=reason)
        before = msgspec.structs.replace(self._status_of(job), note="")
        self._note_end(
            job.id,
            msgspec.structs.replace(before, phase="finished", outcome="cancelled", reason=reason),
        )

    @handles(GetStatus)
    async def on_status(self, message: GetStatus) -> JobStatus | JobUnknown:
        """The last known progress; between jobs, with the workers that are there now."""
        if not message.job:
            return self._latest_status()
        try:
            return self._status_of(self._queue.find(message.job))
        except UnknownJob as error:
            return JobUnknown(str(error))

    @handles(ListJobs)
    async def on_list(self, message: ListJobs) -> JobList:
        """All that have not ended, and the latest of the others."""
        return JobList(tuple(map(self._entry_of, (*self._queue.live(), *self._queue.ended()))))

    def _only_live(self) -> QueuedJob | None:
        live = self._queue.live()
        if len(live) > 1:
            names = ", ".join(f"`{job.name}` ({job.id})" for job in live)
            raise UnknownJob(f"{len(live)} jobs have not ended: {names}; say which is meant")
        return live[0] if live else None

    def _latest_status(self) -> JobStatus:
        """That of the job which runs for the longest, or waits, or ended last."""
        live = sorted(self._queue.live(), key=lambda job: job.began_at or math.inf)
        for job in (*live, *self._queue.ended()):
            return self._status_of(job)
        return JobStatus(workers=self._idle_workers(), nodes=self._nodes())

    def _nodes(self) -> tuple[NodeStatus, ...]:
        return node_statuses(self._fleet.table, asyncio.get_running_loop().time())

    def _status_of(self, job: QueuedJob) -> JobStatus:
        if job.id in self._tenants:
            status = self._tenants[job.id].status
        elif job.id in self._last:
            status = self._last[job.id]
        elif job.has_ended:
            done = job.iteration
            outcome: Any = job.state
            status = JobStatus(phase="finished", outcome=outcome, reason=job.reason, iteration=done)
        else:
            status = JobStatus(phase="queued", note=self._why_waits(job))
        if status.outcome:
            status = msgspec.structs.replace(status, workers=self._idle_workers())
        elif problem := self._no_room.get(job.id):
            status = msgspec.structs.replace(status, note=problem)
        return msgspec.structs.replace(
            status,
            job=job.name,
            id=job.id,
            owner=job.owner,
            weight=job.weight,
            priority=job.priority,
            run_folder=status.run_folder or job.run_folder,
            iterations=status.iterations or job.iterations,
            nodes=self._nodes(),
        )

    def _entry_of(self, job: QueuedJob) -> JobEntry:
        status = self._status_of(job)
        return JobEntry(
            id=job.id,
            name=job.name,
            kind=job.kind,
            owner=job.owner,
            state=job.state,
            weight=job.weight,
            priority=job.priority,
            submitted_at=job.submitted_at,
            began_at=job.began_at,
            ended_at=job.ended_at,
            run_folder=job.run_folder,
            iteration=status.iteration,
            iterations=status.iterations,
            nodes=len(self._fleet.lent_to(job.id)),
            note=status.note or status.reason,
        )

    # --- what its tenants call ---

    def tenant_ended(self, tenant: Tenant) -> None:
        """In its next turn: a tenant has its last status, and is to be stopped."""
        self.call_in_turn(partial(self._end, tenant))

    def run_again(self, tenant: Tenant) -> None:
        """In its next turn: go on with a tenant as after a kill, with whoever is there."""
        self.call_in_turn(partial(self._run_again, tenant))

    async def _end(self, tenant: Tenant) -> None:
        """Nodes are told that a job is over, and say what they did for it in the end. Until then
        all that is needed to go on with it is kept: this coordinator may be killed."""
        if tenant.ended is None or self._tenants.get(tenant.service.id) is not tenant:
            return
        if isinstance(tenant, JobRunner):
            tenant.nodes.forget()
            self.run_task(self._settle(tenant))
        else:
            await self._close(tenant)

    async def _settle(self, tenant: Tenant) -> None:
        await self._accounts.settle(tenant.service.id)
        self.call_in_turn(partial(self._close, tenant))

    async def _close(self, tenant: Tenant) -> None:
        """Write the report, then say so: whoever sees the outcome finds the report."""
        status = tenant.ended
        if status is None or self._tenants.get(tenant.service.id) is not tenant:
            return
        if isinstance(tenant, JobRunner):
            await self._close_run(tenant, status)
        else:
            await self._stop(tenant)
            tenant.nodes.forget()
        self._note_end(tenant.service.id, status)

    async def _close_run(self, job: JobRunner, status: JobStatus) -> None:
        # As it ends, it deletes what another coordinator would need to go on with it.
        self._keep(self._ended(job.service.id, status))
        self._closing.add(status.run_folder)
        await self._stop(job)
        job.nodes.forget()
        try:
            await asyncio.to_thread(write_report, Path(status.run_folder))
        except Exception as error:  # whatever is wrong with a report, the job has ended
            why = f"{type(error).__name__}: {error}"
            job.log.lines.error("report_not_written", reason=why)
        self._closing.discard(status.run_folder)

    async def _run_again(self, tenant: Tenant) -> None:
        if self._tenants.get(tenant.service.id) is not tenant:
            return
        await self._stop(tenant)
        job = self._beginning[tenant.service.id] = self._queue.find(tenant.service.id)
        if tenant.full:  # others are served until it is not any more
            self.run_task(self._go_on(tenant, job))
        else:
            await self._go_on(tenant, job)

    async def _go_on(self, tenant: Tenant, job: QueuedJob) -> None:
        await self._begin_from_disk(job, came_back=tenant.has_begun, full=tenant.full)
        tenant.nodes.forget()  # unless another runner goes on in its place

    async def _stop(self, tenant: Tenant) -> None:
        self._last[tenant.service.id] = tenant.status
        del self._tenants[tenant.service.id]
        await self.system.stop(tenant.ref)
        await self.system.wait_stopped(tenant.ref)

    def _note_end(self, job_id: str, status: JobStatus) -> None:
        """A job runs no more, or does not begin; others may begin."""
        self._waited_for_room.pop(job_id, None)
        self._last.pop(job_id, None)
        self._last[job_id] = status
        while len(self._last) > MOST_LAST:
            del self._last[next(iter(self._last))]
        ended = self._ended(job_id, status)
        if not self._keep(ended):
            self.run_task(self._keep_later(ended))
        self._begin_waiting()

    def _ended(self, job_id: str, status: JobStatus) -> QueuedJob:
        assert status.outcome, "it has ended"
        return msgspec.structs.replace(
            self._queue.find(job_id),
            state=status.outcome,
            ended_at=self._keys.now(),
            reason=status.reason,
            iteration=status.iteration,
        )

    def _keep(self, job: QueuedJob) -> bool:
        """Write down how a job has ended; False if the disk refuses."""
        try:
            self._queue.changed(job)
        except JournalError as error:
            reason = str(error)
            self._refusals_log.error("queue_not_written", about=reason, job=job.name, reason=reason)
            return False
        return True

    async def _keep_later(self, job: QueuedJob) -> None:
        while True:
            await asyncio.sleep(self._timings.coordinator.remind_s)
            if self._keep(job):
                return

    # --- beginning ---

    def _waiting(self) -> list[Waiting]:
        """Those that have not begun."""
        return [
            Waiting(job.id, job.priority, job.submitted_at, job.ranks)
            for job in self._queue.live()
            if job.state == "queued" and job.id not in self._beginning
        ]

    def _borrowers(self) -> list[Borrower]:
        """Those that run, or are about to."""
        running = self._fleet.table.borrowers()
        known = {each.id for each in running}
        for job in self._beginning.values():
            if job.id not in known:
                its = job.id, job.weight, job.priority, len(running), job.ranks
                running.append(Borrower(*its, trains_on=frozenset(), load_s=0.0))
        return running

    def _admitted(self) -> list[str]:
        """The ids of those that may begin now, in the order in which they should."""
        if not (waiting := self._waiting()):
            return []
        now, nodes = self._keys.now(), self._fleet.table.lendable()
        return admit(now, waiting, self._borrowers(), nodes, self._timings.sharing)

    def _why_waits(self, job: QueuedJob) -> str:
        if job.id in self._beginning:
            return self._no_room.get(job.id, "")
        now, nodes = self._keys.now(), self._fleet.table.lendable()
        fleet = self._waiting(), self._borrowers(), nodes
        return why_waits(job.id, now, *fleet, self._timings.sharing)

    def _begin_waiting(self) -> None:
        """Begin the jobs that waited until now."""
        for job_id in self._admitted():
            job = self._beginning[job_id] = self._queue.find(job_id)
            self.run_task(self._begin_from_disk(job, came_back=False))

    async def _begin_from_disk(self, job: QueuedJob, *, came_back: bool, full: str = "") -> None:
        """Begin, or go on with, what is in a folder; once the disk has room, if it was `full`, or
        is. A job that cannot has failed."""
        self._beginning[job.id] = job
        try:
            if full:
                await self._begin_with_room(job, full, came_back=came_back)
            else:
                await self._begin_what_is_there(job, came_back=came_back)
        except Exception as error:  # whatever is wrong with a job, the others go on
            if job.kind == "job" and not full and is_disk_full(error):  # others are served
                full = str(error)
                self.run_task(self._begin_from_disk(job, came_back=came_back, full=full))
                return
            self._cannot_begin(job, error)
        self._begins_no_more(job.id)

    def _cannot_begin(self, job: QueuedJob, error: Exception) -> None:
        """It has failed; of a session nothing is left."""
        if job.kind == "session":
            shutil.rmtree(job.run_folder, ignore_errors=True)
        is_known = isinstance(error, UserError)
        _log_of(job).error(
            "job_cannot_begin",
            run_folder=job.run_folder,
            reason=str(error),
            exc_info=None if is_known else error,
        )
        why = "it could not be started; the coordinator's log says why"
        reason = str(error) if is_known else why
        self._note_end(job.id, JobStatus(outcome="failed", reason=reason))

    async def _begin_what_is_there(self, job: QueuedJob, *, came_back: bool) -> None:
        path, permissions = Path(job.run_folder), self._permissions
        if job.kind == "session":
            session = SessionFolder.reopen(path)
            work = session.saved.work
            files = await self._in_thread(lambda: read_session_files(work, permissions))
            await self._begin_session(job, session, files, came_back=came_back)
            return
        submission = await self._in_thread(lambda: read_interrupted(path, permissions, job.changes))
        if not came_back:
            await self._wait_for_room(submission, job.id)
        if cancelled := self._cancels.get(job.id):
            return self._cancel_queued(job, cancelled.reason)
        folder, _ = RunFolder.reopen(path, submission.job, job.changes)
        await self._begin_job(job, folder, submission, came_back=came_back)

    async def _begin_with_room(self, job: QueuedJob, problem: str, *, came_back: bool) -> None:
        """Try to go on with a job that a full disk has stopped, until the disk takes what is
        written, the job is cancelled, or that was in vain for too long."""
        times = self._timings.coordinator
        iteration = self._last[job.id].iteration if job.id in self._last else job.iteration
        before, waited_s = self._waited_for_room.get(job.id, (iteration, 0.0))
        waited_s = waited_s if before == iteration else 0.0
        nodes = None
        if came_back and job.id not in self._fleet.table.tenants:  # they keep what they have of it
            nodes = self._fleet.begin(job.id, Terms(job.weight, job.priority, job.ranks))
        try:
            while waited_s < times.full_disk_s:
                what, _, _ = problem.partition("; ")  # the rest says how to resume a run by hand
                self._no_room[job.id] = f"goes on when the disk has room: {what}"
                self._refusals_log.warning("job_waits_for_room", about=job.id, reason=problem)
                await asyncio.sleep(times.full_disk_pause_s)
                waited_s += times.full_disk_pause_s
                self._waited_for_room[job.id] = iteration, waited_s
                try:
                    return await self._begin_what_is_there(job, came_back=came_back)
                except UserError as error:
                    if not is_disk_full(error):
                        raise
                    problem = str(error)
        finally:
            self._no_room.pop(job.id, None)
            if nodes is not None:
                nodes.forget()  # unless the job has begun
        raise RunFolderError(problem)

    async def _wait_for_room(self, submission: Submission, job_id: str) -> None:
        """Until the disk has room for the run, or the job is cancelled: a disk that is full for a
        while costs no job its place."""
        try:
            while job_id not in self._cancels:
                problem = await self._in_thread(lambda: no_room(submission))
                if not problem:
                    return
                self._no_room[job_id] = problem
                self._refusals_log.warning("job_waits_for_room", about=job_id, reason=problem)
                await asyncio.sleep(self._timings.coordinator.remind_s)
        finally:
            self._no_room.pop(job_id, None)

    def _begins_no_more(self, job_id: str) -> None:
        del self._beginning[job_id]
        self._cancels.pop(job_id, None)

    async def _begin_or_refuse(
        self, job: QueuedJob, begin: Coroutine[Any, Any, BegunT], former: QueuedJob | None = None
    ) -> BegunT:
        """Begin what has just come into the queue, where `former` was known of it. If that cannot
        be, it was never there."""
        self._beginning[job.id] = job
        try:
            return await begin
        except Exception:
            try:
                self._queue.take_back(job.id, former)
            except JournalError as error:
                self._note_end(job.id, JobStatus(outcome="failed", reason=str(error)))
            raise
        finally:
            self._begins_no_more(job.id)

    async def _begin_job(
        self, queued: QueuedJob, folder: RunFolder, submission: Submission, *, came_back: bool
    ) -> None:
        with ExitStack() as undo:
            undo.callback(folder.close)
            identity = identify(folder.journal, queued.name, self._rng, queued.owner)
            require_same_prompts(folder.journal, submission.files.prompt_digests)
            undo.pop_all()  # `_install` closes it
        event = "job_goes_on" if came_back else "job_began"
        _log_of(queued).info(event, run_folder=queued.run_folder)
        job, files, hub_files = submission.job, submission.files, submission.hub_files
        mirror, clock = self._mirror, self._keys.now
        setup = JobSetup(job, identity, folder, files, came_back, mirror, clock, hub_files)

        def make(around: Surroundings) -> JobRunner:
            begin_segment(folder, job.iterations)  # the queue has the job: it goes on
            return JobRunner(setup, around)

        await self._install(queued, folder, f"job-{identity.job_id}", identity.token, make)

    async def _begin_session(
        self, queued: QueuedJob, folder: SessionFolder, files: SessionFiles, *, came_back: bool
    ) -> SessionRunner:
        event = "session_goes_on" if came_back else "session_began"
        _log_of(queued).info(event, user=str(folder.saved.user))
        setup = SessionSetup(folder, files, came_back)
        make = partial(SessionRunner, setup)
        return await self._install(queued, folder, queued.name, folder.saved.token, make)

    async def _install(
        self,
        job: QueuedJob,
        folder: RunFolder | SessionFolder,
        actor: str,
        token: str,
        make: Callable[[Surroundings], TenantT],
    ) -> TenantT:
        """Have a tenant work in a folder; its store has that token."""
        async with AsyncExitStack() as undo:
            undo.callback(folder.close)
            store = self._open_store(artifacts_of(folder.path), token)
            await store.start()
            undo.push_async_callback(store.aclose)
            began_at = job.began_at or self._keys.now()
            self._queue.changed(msgspec.structs.replace(job, state="running", began_at=began_at))
            nodes = self._fleet.begin(job.id, Terms(job.weight, job.priority, job.ranks))
            undo.callback(nodes.forget)
            known = {node.node: node for node in self._fleet.lent_to(job.id)}
            lent = tuple(known.values())
            around = Surroundings(self, store, nodes, lent, self._timings, self._prices)
            tenant = make(around)
            await self.spawn(lambda: tenant, actor, mailbox=MAILBOX)
            undo.pop_all()  # it is the tenant's to close now
        self._tenants[job.id] = tenant
        self.watch(tenant.ref)
        if tenant.ended is not None:  # as it started, when `_end` did not know it
            self.tenant_ended(tenant)
        if tenant.full:
            self.run_again(tenant)
        self._tell_changes(tenant, known)
        if job.id in self._cancels:
            self.tell(tenant.ref, self._cancels[job.id])
        return tenant

    def _tell_changes(self, tenant: Tenant, known: dict[str, NodeReport]) -> None:
        """Nodes that came or went while the tenant started, which knows these."""
        present = {node.node: node for node in self._fleet.lent_to(tenant.service.id)}
        for name, node in known.items():
            if name not in present or present[name].scheduler != node.scheduler:
                tenant.lose_node(name, "it left as the job began", announced=False)
        for name, node in present.items():
            if known.get(name) != node:
                self.tell(tenant.ref, node)

    async def _in_thread(self, read: Callable[[], Read]) -> Read:
        limit_s = self._timings.coordinator.read_limit_s
        try:
            return await run_in_abandonable_thread(read, limit_s, "reader")
        except TimeoutError as error:
            raise RequestRefused(
                f"its files could not be read within {limit_s:g} s; check whether their disk"
                " responds"
            ) from error

    def _idle_workers(self) -> tuple[WorkerStatus, ...]:
        return tuple(
            WorkerStatus(worker.worker, node.node, node.pool, "idle", "")
            for node in self._fleet.present()
            for worker in node.workers
        )


def _log_of(job: QueuedJob) -> Any:
    return TenantLog(job.id, job.name, job.owner).lines


@contextmanager
def _kept_unless_refused(folder: Path) -> Iterator[None]:
    """Nothing is left of a new run, or a session, that was not taken."""
    try:
        yield
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _actors_of(worker: WorkerRefs) -> Iterable[ActorRef]:
    return worker.leader, worker.member, worker.trainer_rank
