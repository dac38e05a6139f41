"""The coordinator: knows the nodes, and runs one job, or one session of another program, at a time.

Messages in: NodeReport (nodes), SubmitJob, BeginSession, CancelJob, PreemptNode, GetStatus (users),
Down (a node or the job runner).
Messages out: NodePlan, NodeRefused (nodes), JobAccepted, JobRefused, SessionBegan, SessionRefused,
JobStatus (users). NodeReport and CancelJob are passed on to the runner of the job or session, which
is told by a call that a node is lost, and calls back with its status, and when it has ended.

A node is the one that its key is known as (`KeyRing`), and its name is its own for as long as its
process is in reach. A job or a session is that submitter's whose key it came by. When the job
runner crashes the job has failed, its run folder stays resumable and the coordinator goes on. When
trainers are lost another runner goes on with the job. When the coordinator itself is killed, the
next one on the same runs folder does, with the nodes that are still there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from spotlight.actors.coordinator.fleet import Fleet
from spotlight.actors.coordinator.job.job_runner import JobRunner, JobSetup
from spotlight.actors.coordinator.job.mirroring import MirrorPlace
from spotlight.actors.coordinator.key_ring import OPERATOR, REFUSALS_LOG_S, KeyRing
from spotlight.actors.coordinator.node_statuses import node_statuses
from spotlight.actors.coordinator.session.session_folder import (
    SavedSession,
    SessionFolder,
    is_session,
)
from spotlight.actors.coordinator.session.session_runner import SessionRunner, SessionSetup
from spotlight.actors.coordinator.submissions import (
    SessionFiles,
    Submission,
    read_interrupted,
    read_session_files,
    read_submission,
)
from spotlight.actors.coordinator.tenant.job_journal import identify, require_same_prompts
from spotlight.actors.coordinator.tenant.tenant import Surroundings, Tenant
from spotlight.actors.protocol import (
    Acknowledged,
    BeginSession,
    CancelJob,
    CancelRefused,
    GetStatus,
    JobAccepted,
    JobRefused,
    JobStatus,
    NodePlan,
    NodeRefused,
    NodeReport,
    NodeUnknown,
    PreemptNode,
    SessionBegan,
    SessionRefused,
    SubmitJob,
    WorkerRefs,
    WorkerStatus,
)
from spotlight.actors.runtime import Actor, ActorRef, Down, handles
from spotlight.actors.runtime.abandonable_thread import run_in_abandonable_thread
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.errors import RequestRefused, UserError
from spotlight.permissions import Permissions
from spotlight.report.rendering import write_report
from spotlight.store.run_folder import RunFolder, artifacts_of
from spotlight.store.runs_folder import RunsFolder
from spotlight.timings import Timings
from spotlight.transport.tensors import ArtifactStore

log = structlog.get_logger(__name__)

Read = TypeVar("Read")
TenantT = TypeVar("TenantT", bound=Tenant)

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
    ) -> None:
        self._runs = runs
        self._mirror = mirror
        self._permissions = permissions
        self._rng = rng
        self._timings = timings
        self._open_store = open_store
        self._keys = keys
        self._fleet: Fleet
        self._tenants: dict[str, Tenant] = {}
        """The jobs and sessions that run, by id. So far there is one at a time."""
        self._last = JobStatus()
        """How the latest ended that runs no more."""
        self._refusals_log = LimitedLog(log, REFUSALS_LOG_S)
        """The log of users and nodes that are refused: they may try as often as they like."""
        self._starting = False
        """A submission is being read."""

    async def started(self) -> None:
        """Go on with the job in the middle of which an earlier coordinator was killed."""
        self._fleet = Fleet(self, self, self._timings.rejoin)
        if (path := self._runs.running) is not None:
            await self._go_on(path)

    async def _go_on(self, path: Path) -> None:
        try:
            if is_session(path):
                session = SessionFolder.reopen(path)
                work, permissions = session.saved.work, self._permissions
                files = await self._in_thread(lambda: read_session_files(work, permissions))
                await self._begin_session(session, files, came_back=True)
                return
            permissions = self._permissions
            submission = await self._in_thread(lambda: read_interrupted(path, permissions))
            folder, _ = RunFolder.reopen(path, submission.job)
            await self._begin(folder, submission, user=OPERATOR, came_back=True)
        except UserError as error:
            log.error("cannot_go_on", run_folder=str(path), reason=str(error))
            self._last = JobStatus(outcome="failed", reason=str(error), run_folder=str(path))

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
        answer = NodeRefused(problem) if problem else self._fleet.reported(message)
        if isinstance(answer, NodeRefused):
            node, reason = message.node, answer.reason
            self._refusals_log.info("node_refused", about=(node, reason), node=node, reason=reason)
        return answer

    @handles(PreemptNode)
    async def on_preempt(self, message: PreemptNode) -> Acknowledged | NodeUnknown:
        """A user gives a node notice, or withdraws it, from one that has left too."""
        if not self._fleet.give_notice(message.node, message.notice_s, cancel=message.cancel):
            return NodeUnknown(tuple(sorted(node.node for node in self._fleet.present())))
        return Acknowledged()

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        """A node is gone, or the job runner crashed."""
        for tenant in self._tenants.values():
            if message.ref == tenant.ref:
                return self._lose_tenant(tenant, message.reason)
        self._fleet.out_of_reach(message.ref, message.reason, self._keys)

    def node_reported(self, report: NodeReport) -> None:
        """Whoever runs hears of it."""
        for tenant in self._tenants.values():
            self.tell(tenant.ref, report)

    def node_lost(self, name: str, reason: str, *, announced: bool) -> None:
        """Whoever runs hears of it."""
        for tenant in self._tenants.values():
            tenant.lose_node(name, reason, announced=announced)

    def _lose_tenant(self, tenant: Tenant, reason: str) -> None:
        """Its actor crashed: its folder stays resumable."""
        del self._tenants[tenant.service.id]
        tenant.nodes.forget()
        self._runs.end()
        tenant.log.lines.error("job_runner_ended", reason=reason)
        why = f"the job runner {reason}; see the coordinator's log"
        self._last = msgspec.structs.replace(tenant.status, outcome="failed", reason=why)

    def take_back_rights(self, name: str) -> None:
        """A node was shown out: it leaves nothing more in the store, and fetches nothing."""
        for tenant in self._tenants.values():
            tenant.store.revoke(name)

    @handles(SubmitJob)
    async def on_submit(self, message: SubmitJob) -> JobRefused | asyncio.Task[Any]:
        """Start the job, or say why not. Others are served while its files are read."""
        if not (user := self._keys.user(self.sender_address)):
            return JobRefused("whoever has this key submits no jobs, or was shown out")
        if (tenant := self._running()) is not None:
            return JobRefused(
                f"job `{tenant.service.title}` is running; wait for it, or `spotlight cancel` it"
                " first"
            )
        if self._starting:
            return JobRefused("another job is about to start; try again in a moment")
        self._starting = True
        return self.run_task(self._start(message, user))

    async def _start(self, message: SubmitJob, user: str) -> JobAccepted | JobRefused:
        try:
            submission = await self._in_thread(
                lambda: read_submission(message, self._runs, self._permissions)
            )
            if message.resume:
                folder, _ = RunFolder.reopen(submission.run_folder, message.job)
            else:
                folder = RunFolder.create(submission.run_folder, submission.job)
            return await self._begin(folder, submission, user=user, came_back=False)
        except UserError as error:
            job, reason = message.job.name, str(error)
            self._refusals_log.info("job_refused", about=(job, reason), job=job, reason=reason)
            return JobRefused(str(error))
        except Exception as error:  # whatever is wrong with a job, it ends no coordinator
            log.error("job_not_started", error=repr(error), exc_info=error)
            return JobRefused("the job could not be started; the coordinator's log says why")
        finally:
            self._starting = False

    @handles(BeginSession, only=_for_itself)
    async def on_begin_session(
        self, message: BeginSession
    ) -> SessionBegan | SessionRefused | asyncio.Task[Any]:
        """Serve another program's loop, or go on to serve it, or say why not."""
        running, user = self._running(), self._keys.user(self.sender_address)
        if not user:
            return SessionRefused("whoever has this key begins no sessions, or was shown out")
        if isinstance(running, SessionRunner) and running.session == message.session:
            if user not in (OPERATOR, running.service.owner):
                return SessionRefused("the session is somebody else's")
            return running.began
        if running is not None or self._starting:
            busy = running.service.title if running is not None else "a job"
            return SessionRefused(f"`{busy}` is running; `spotlight cancel` it first")
        if message.goes_on:
            return SessionRefused(f"the session has ended: {self._last.reason or 'it is over'}")
        self._starting = True
        return self.run_task(self._start_session(message, user))

    async def _start_session(
        self, message: BeginSession, user: str
    ) -> SessionBegan | SessionRefused:
        try:
            work, permissions = message.work, self._permissions
            files = await self._in_thread(lambda: read_session_files(work, permissions))
            token = f"{self._rng.getrandbits(128):032x}"
            saved = SavedSession(message.session, message.user, message.work, token, user)
            folder = SessionFolder.create(self._runs.path, saved)
            return (await self._begin_session(folder, files, came_back=False)).began
        except UserError as error:
            user, reason = str(message.user), str(error)
            self._refusals_log.info("session_refused", about=reason, user=user, reason=reason)
            return SessionRefused(str(error))
        except Exception as error:  # whatever is wrong with a session, it ends no coordinator
            log.error("session_not_started", error=repr(error), exc_info=error)
            return SessionRefused("it could not be started; the coordinator's log says why")
        finally:
            self._starting = False

    @handles(CancelJob)
    async def on_cancel(self, message: CancelJob) -> JobStatus | CancelRefused:
        """Pass it on; the answer is the status before."""
        tenant = self._running()
        if tenant is None:
            return self._last
        if self._keys.user(self.sender_address) not in (OPERATOR, tenant.service.owner):
            return CancelRefused(
                f"`{tenant.service.title}` is somebody else's; whoever submitted it, or an"
                " operator, can cancel it"
            )
        self.tell(tenant.ref, message)
        return tenant.status

    @handles(GetStatus)
    async def on_status(self, message: GetStatus) -> JobStatus:
        """The last known progress, with the nodes that are there now; between jobs, with their
        workers."""
        nodes = node_statuses(self._fleet.table, asyncio.get_running_loop().time())
        if (tenant := self._running()) is not None:
            return msgspec.structs.replace(tenant.status, nodes=nodes)
        return msgspec.structs.replace(self._last, workers=self._idle_workers(), nodes=nodes)

    def _running(self) -> Tenant | None:
        return next(iter(self._tenants.values()), None)

    # --- what its tenants call ---

    def tenant_ended(self, tenant: Tenant) -> None:
        """In its next turn: a tenant has its last status, and is to be stopped."""
        self.call_in_turn(partial(self._end, tenant))

    def run_again(self, tenant: Tenant) -> None:
        """In its next turn: go on with a tenant as after a kill, with whoever is there."""
        self.call_in_turn(partial(self._run_again, tenant))

    async def _end(self, tenant: Tenant) -> None:
        """Write the report, then say so: whoever sees the outcome finds the report."""
        status = tenant.ended
        if status is None or self._tenants.get(tenant.service.id) is not tenant:
            return
        await self._stop(tenant)
        tenant.nodes.forget()
        if isinstance(tenant, JobRunner):
            try:
                await asyncio.to_thread(write_report, Path(status.run_folder))
            except Exception as error:  # whatever is wrong with a report, the job has ended
                why = f"{type(error).__name__}: {error}"
                tenant.log.lines.error("report_not_written", reason=why)
        self._runs.end()
        self._last = status

    async def _run_again(self, tenant: Tenant) -> None:
        is_there = self._tenants.get(tenant.service.id) is tenant
        if is_there and (path := self._runs.running) is not None:
            await self._stop(tenant)
            await self._go_on(path)
            tenant.nodes.forget()  # unless another runner goes on in its place

    async def _stop(self, tenant: Tenant) -> None:
        self._last = tenant.status
        del self._tenants[tenant.service.id]
        await self.system.stop(tenant.ref)
        await self.system.wait_stopped(tenant.ref)

    async def _begin(
        self, folder: RunFolder, submission: Submission, *, user: str, came_back: bool
    ) -> JobAccepted:
        name = submission.job.name
        with ExitStack() as undo:
            undo.callback(folder.close)
            identity = identify(folder.journal, name, self._rng, user)
            if user not in (OPERATOR, identity.owner):
                raise RequestRefused(
                    f"{folder.path} is somebody else's run; whoever submitted it, or an operator,"
                    " can go on with it"
                )
            require_same_prompts(folder.journal, submission.files.prompt_digests)
            undo.pop_all()  # `_install` closes it
        log.info(
            "job_goes_on" if came_back else "job_accepted",
            job_id=identity.job_id,
            job=name,
            owner=identity.owner,
            run_folder=str(folder.path),
        )
        job, files, hub_files = submission.job, submission.files, submission.hub_files
        setup = JobSetup(job, identity, folder, files, came_back, self._mirror, hub_files)
        actor = f"job-{identity.job_id}"
        make = partial(JobRunner, setup)
        await self._install(folder, identity.job_id, actor, identity.token, make)
        return JobAccepted(identity.job_id, str(folder.path))

    async def _begin_session(
        self, folder: SessionFolder, files: SessionFiles, *, came_back: bool
    ) -> SessionRunner:
        name = f"session-{folder.saved.session}"
        log.info(
            "session_goes_on" if came_back else "session_began",
            job_id=folder.saved.session,
            job=name,
            owner=folder.saved.owner,
            user=str(folder.saved.user),
        )
        setup = SessionSetup(folder, files, came_back)
        saved, make = folder.saved, partial(SessionRunner, setup)
        return await self._install(folder, saved.session, name, saved.token, make)

    async def _install(
        self,
        folder: RunFolder | SessionFolder,
        tenant_id: str,
        actor: str,
        token: str,
        make: Callable[[Surroundings], TenantT],
    ) -> TenantT:
        """Have a tenant work in a folder, of which a coordinator that comes back learns; its store
        has that token."""
        known = {node.node: node for node in self._fleet.present()}
        async with AsyncExitStack() as undo:
            undo.callback(folder.close)
            store = self._open_store(artifacts_of(folder.path), token)
            await store.start()
            undo.push_async_callback(store.aclose)
            self._runs.begin(folder.path)
            nodes = self._fleet.begin(tenant_id)
            undo.callback(nodes.forget)
            around = Surroundings(self, store, nodes, tuple(known.values()), self._timings)
            tenant = make(around)
            await self.spawn(lambda: tenant, actor, mailbox=MAILBOX)
            undo.pop_all()  # it is the tenant's to close now
        self._tenants[tenant.service.id] = tenant
        self.watch(tenant.ref)
        if tenant.ended is not None:  # as it started, when `_end` did not know it
            self.tenant_ended(tenant)
        self._tell_changes(tenant, known)
        return tenant

    def _tell_changes(self, tenant: Tenant, known: dict[str, NodeReport]) -> None:
        """Nodes that came or went while the tenant started, which knows these."""
        present = {node.node: node for node in self._fleet.present()}
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


def _actors_of(worker: WorkerRefs) -> Iterable[ActorRef]:
    return worker.leader, worker.member, worker.trainer_rank
