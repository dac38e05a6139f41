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

from spotlight.actors.coordinator.fleet import Fleet, TenantFleet
from spotlight.actors.coordinator.job.job_runner import JobRunner
from spotlight.actors.coordinator.job.mirroring import MirrorPlace
from spotlight.actors.coordinator.key_ring import OPERATOR, KeyRing
from spotlight.actors.coordinator.runner_starts import (
    RunnerStart,
    RunnerSurroundings,
    make_job_runner,
    make_session_runner,
)
from spotlight.actors.coordinator.session.session_folder import (
    SavedSession,
    SessionFolder,
    is_session,
)
from spotlight.actors.coordinator.session.session_runner import SessionRunner
from spotlight.actors.coordinator.submissions import (
    SessionFiles,
    Submission,
    read_interrupted,
    read_session_files,
    read_submission,
)
from spotlight.actors.coordinator.tenant.job_journal import identify, require_same_prompts
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
from spotlight.actors.runtime.log_limiter import LogLimiter
from spotlight.errors import RequestRefused, UserError
from spotlight.permissions import Permissions
from spotlight.report.rendering import write_report
from spotlight.store.run_folder import RunFolder, artifacts_of
from spotlight.store.runs_folder import RunsFolder
from spotlight.timings import Timings
from spotlight.transport.tensors import ArtifactStore

log = structlog.get_logger(__name__)

Read = TypeVar("Read")
_Runner = JobRunner | SessionRunner
RunnerT = TypeVar("RunnerT", JobRunner, SessionRunner)

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
        self._runner: _Runner | None = None
        self._tenant: TenantFleet | None = None
        """Of the latest runner."""
        self._store: ArtifactStore | None = None
        """Of the latest runner."""
        self._owner = OPERATOR
        """Of the latest job or session."""
        self._status = JobStatus()
        self._refusals_log = LogLimiter()
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
            self._status = JobStatus(outcome="failed", reason=str(error), run_folder=str(path))

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
        if problem:
            return NodeRefused(problem)
        return self._fleet.reported(message)

    @handles(PreemptNode)
    async def on_preempt(self, message: PreemptNode) -> Acknowledged | NodeUnknown:
        """A user gives a node notice, or withdraws it, from one that has left too."""
        if not self._fleet.give_notice(message.node, message.notice_s, cancel=message.cancel):
            return NodeUnknown(tuple(sorted(node.node for node in self._fleet.present())))
        return Acknowledged()

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        """A node is gone, or the job runner crashed."""
        if self._runner is not None and message.ref == self._runner.ref:
            self._runner = None
            if self._tenant is not None:
                self._tenant.forget()
            self._runs.end()
            log.error("job_runner_ended", job=self._status.job, reason=message.reason)
            reason = f"the job runner {message.reason}; see the coordinator's log"
            self._status = msgspec.structs.replace(self._status, outcome="failed", reason=reason)
            return
        self._fleet.out_of_reach(message.ref, message.reason, self._keys)

    def node_reported(self, report: NodeReport) -> None:
        """Whoever runs hears of it."""
        if self._runner is not None:
            self.tell(self._runner.ref, report)

    def node_lost(self, name: str, reason: str, *, announced: bool) -> None:
        """Whoever runs hears of it."""
        if self._runner is not None:
            self._runner.lose_node(name, reason, announced=announced)

    def take_back_rights(self, name: str) -> None:
        """A node was shown out: it leaves nothing more in the store, and fetches nothing."""
        if self._runner is not None and self._store is not None:
            self._store.revoke(name)

    @handles(SubmitJob)
    async def on_submit(self, message: SubmitJob) -> JobRefused | asyncio.Task[Any]:
        """Start the job, or say why not. Others are served while its files are read."""
        if not (user := self._keys.user(self.sender_address)):
            return JobRefused("whoever has this key submits no jobs, or was shown out")
        if self._runner is not None:
            return JobRefused(
                f"job `{self._status.job}` is running; wait for it, or `spotlight cancel` it first"
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
            self._log_refusal("job_refused", job=message.job.name, reason=str(error))
            return JobRefused(str(error))
        except Exception as error:  # whatever is wrong with a job, it ends no coordinator
            log.error("job_not_started", error=repr(error), exc_info=error)
            return JobRefused("the job could not be started; the coordinator's log says why")
        finally:
            self._starting = False

    def _log_refusal(self, event: str, **fields: str) -> None:
        """A user may try as often as it likes; the log is the operator's."""
        unlogged = self._refusals_log.admit(event, asyncio.get_running_loop().time())
        if unlogged is not None:
            log.info(event, unlogged=unlogged, **fields)

    @handles(BeginSession, only=_for_itself)
    async def on_begin_session(
        self, message: BeginSession
    ) -> SessionBegan | SessionRefused | asyncio.Task[Any]:
        """Serve another program's loop, or go on to serve it, or say why not."""
        runner, user = self._runner, self._keys.user(self.sender_address)
        if not user:
            return SessionRefused("whoever has this key begins no sessions, or was shown out")
        if isinstance(runner, SessionRunner) and runner.session == message.session:
            if user not in (OPERATOR, self._owner):
                return SessionRefused("the session is somebody else's")
            return runner.began
        if runner is not None or self._starting:
            busy = self._status.job or "a job"
            return SessionRefused(f"`{busy}` is running; `spotlight cancel` it first")
        if message.goes_on:
            return SessionRefused(f"the session has ended: {self._status.reason or 'it is over'}")
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
            self._log_refusal("session_refused", user=str(message.user), reason=str(error))
            return SessionRefused(str(error))
        except Exception as error:  # whatever is wrong with a session, it ends no coordinator
            log.error("session_not_started", error=repr(error), exc_info=error)
            return SessionRefused("it could not be started; the coordinator's log says why")
        finally:
            self._starting = False

    @handles(CancelJob)
    async def on_cancel(self, message: CancelJob) -> JobStatus | CancelRefused:
        """Pass it on; the answer is the status before."""
        if self._runner is not None:
            if self._keys.user(self.sender_address) not in (OPERATOR, self._owner):
                return CancelRefused(
                    f"`{self._status.job}` is somebody else's; whoever submitted it, or an"
                    " operator, can cancel it"
                )
            self.tell(self._runner.ref, message)
        return self._status

    @handles(GetStatus)
    async def on_status(self, message: GetStatus) -> JobStatus:
        """The last known progress; between jobs, with the workers that are there now."""
        if self._runner is not None:
            return self._status
        return msgspec.structs.replace(self._status, workers=self._idle_workers())

    # --- what the job runner calls ---

    def _note_status(self, runner: _Runner, status: JobStatus) -> None:
        if runner is self._runner:
            self._status = status

    async def _end_job(self, runner: _Runner, status: JobStatus) -> None:
        """Write the report, then say so: whoever sees the outcome finds the report."""
        if runner is not self._runner:
            return
        tenant = self._tenant
        await self._stop(runner)
        if tenant is not None:
            tenant.forget()
        if isinstance(runner, JobRunner):
            try:
                await asyncio.to_thread(write_report, Path(status.run_folder))
            except Exception as error:  # whatever is wrong with a report, the job has ended
                log.error("report_not_written", reason=f"{type(error).__name__}: {error}")
        self._runs.end()
        self._status = status

    async def _run_again(self, runner: _Runner) -> None:
        """Go on with the job as after a kill, with whoever is there."""
        if runner is self._runner and (path := self._runs.running) is not None:
            tenant = self._tenant
            await self._stop(runner)
            await self._go_on(path)
            if tenant is not None:  # unless another runner goes on as the same tenant
                tenant.forget()

    async def _stop(self, runner: _Runner) -> None:
        self._runner = None
        await self.system.stop(runner.ref)
        await self.system.wait_stopped(runner.ref)

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
        start = RunnerStart(
            name,
            f"job-{identity.job_id}",
            identity.job_id,
            folder.path,
            identity.token,
            identity.owner,
        )
        log.info(
            "job_goes_on" if came_back else "job_accepted", job=name, run_folder=str(folder.path)
        )
        make = partial(make_job_runner, folder, submission, identity.job_id, came_back=came_back)
        await self._install(start, folder.close, make)
        return JobAccepted(identity.job_id, str(folder.path))

    async def _begin_session(
        self, folder: SessionFolder, files: SessionFiles, *, came_back: bool
    ) -> SessionRunner:
        name = f"session-{folder.saved.session}"
        saved = folder.saved
        start = RunnerStart(name, name, saved.session, folder.path, saved.token, saved.owner)
        log.info(
            "session_goes_on" if came_back else "session_began",
            job=name,
            user=str(folder.saved.user),
        )
        make = partial(make_session_runner, folder, files, came_back=came_back)
        return await self._install(start, folder.close, make)

    async def _install(
        self,
        start: RunnerStart,
        close: Callable[[], None],
        make: Callable[[RunnerSurroundings], RunnerT],
    ) -> RunnerT:
        """Have a runner work in a folder, of which a coordinator that comes back learns."""
        nodes = {node.node: node for node in self._fleet.present()}
        runner: RunnerT
        async with AsyncExitStack() as undo:
            undo.callback(close)
            store = self._open_store(artifacts_of(start.folder), start.token)
            await store.start()
            undo.push_async_callback(store.aclose)
            self._runs.begin(start.folder)
            tenant = self._fleet.begin(start.tenant)
            undo.callback(tenant.forget)
            around = RunnerSurroundings(
                store,
                tenant,
                self.ref,
                tuple(nodes.values()),
                self._timings,
                self._mirror,
                on_status=lambda status: self._note_status(runner, status),
                on_end=lambda status: self.call_in_turn(partial(self._end_job, runner, status)),
                on_loss=lambda: self.call_in_turn(partial(self._run_again, runner)),
            )
            runner = make(around)
            await self.spawn(lambda: runner, start.actor, mailbox=MAILBOX)
            undo.pop_all()  # it is the runner's to close now
        self._runner, self._store, self._owner = runner, store, start.owner
        self._tenant = tenant
        self._status = JobStatus(job=start.title, phase="preparing")
        self.watch(runner.ref)
        if runner.ended is not None:  # as it started, when `_end_job` did not know it
            around.on_end(runner.ended)
        self._tell_changes(runner, nodes)
        return runner

    def _tell_changes(self, runner: _Runner, known: dict[str, NodeReport]) -> None:
        """Nodes that came or went while the runner started, which knows these."""
        present = {node.node: node for node in self._fleet.present()}
        for name, node in known.items():
            if name not in present or present[name].scheduler != node.scheduler:
                runner.lose_node(name, "it left as the job began", announced=False)
        for name, node in present.items():
            if known.get(name) != node:
                self.tell(runner.ref, node)

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
