"""The coordinator: knows the nodes, and runs one job at a time.

Messages in: JoinNode, NodeLeaving, NodeLeft (nodes), SubmitJob, CancelJob, PreemptNode, GetStatus
(users), JobStatus, JobEnded, RunAgain, AdmitNode (job runner), Down (a node or the runner).
Messages out: NodeJoined, NoticeGiven (nodes), JobAccepted, JobRefused, JobStatus; JoinNode,
NodeDown, NodeLeaving, CancelJob to the job runner.

A node's name is its own for as long as its process is in reach. When the job runner crashes the job
has failed, its run folder stays resumable and the coordinator goes on. When trainers are lost
another runner goes on with the job. When the coordinator itself is killed, the next one on the same
runs folder does, with the nodes that are still there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from spotlight.actors.coordinator.job_journal import Identity, read_identity, save_identity
from spotlight.actors.coordinator.job_runner import JobRunner
from spotlight.actors.coordinator.submissions import Submission, read_interrupted, read_submission
from spotlight.actors.protocol import (
    Acknowledged,
    AdmitNode,
    CancelJob,
    EndJob,
    GetStatus,
    JobAccepted,
    JobEnded,
    JobRefused,
    JobStatus,
    JoinNode,
    NodeDown,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeRefused,
    NodeUnknown,
    NoticeGiven,
    PreemptNode,
    RunAgain,
    SubmitJob,
    WorkerStatus,
)
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor, ActorRef, Down, Message, handles
from spotlight.actors.runtime.abandonable_thread import AbandonableThread
from spotlight.errors import RequestRefused, UserError
from spotlight.jobs import JobSpec
from spotlight.report.report import write_report
from spotlight.store.run_folder import RunFolder, replace_file
from spotlight.timings import Timings
from spotlight.transport.tensors import ArtifactStore, BundleStore

log = structlog.get_logger(__name__)

Read = TypeVar("Read")

_DISMISSALS = 4
_RUNNER_MAILBOX = 8192
"""Thousands of workers tell the job runner what they do, at times all at once."""


class Coordinator(Actor):
    """See the module's docstring.

    Args:
        runs: folder for run folders whose path is not given.
        host: address that the run folder's store binds.
        rng: source of job ids and tokens.
        open_store: makes the artifact store of a run from its folder and token.
        timings: how long it and its actors wait.
    """

    def __init__(
        self,
        runs: Path,
        host: str,
        rng: random.Random,
        open_store: Callable[[Path, str], ArtifactStore] | None = None,
        timings: Timings = Timings(),
    ) -> None:
        self._runs = runs
        self._rng = rng
        self._timings = timings
        self._open_store = open_store or (
            lambda folder, token: BundleStore(folder, token=token, host=host, durable=True)
        )
        self._nodes: dict[str, JoinNode] = {}
        self._leaving: set[str] = set()
        self._left: dict[str, ActorRef] = {}
        """Nodes that left after a notice, which may yet be withdrawn."""
        self._runner: ActorRef | None = None
        self._end: EndJob | None = None
        """What nodes are told when the job that runs, or ran last, is over."""
        self._status = JobStatus()
        self._starting = False
        """A submission is being read."""

    async def started(self) -> None:
        """Go on with the job in the middle of which an earlier coordinator was killed."""
        if self._running.exists():
            await self._go_on(Path(self._running.read_text(encoding="utf-8")))

    async def _go_on(self, path: Path) -> None:
        try:
            submission = await self._in_thread(lambda: read_interrupted(path))
            folder, _ = RunFolder.reopen(path, submission.job)
            await self._begin(folder, submission, came_back=True)
        except UserError as error:
            log.error("cannot_go_on", run_folder=str(path), reason=str(error))
            self._status = JobStatus(outcome="failed", reason=str(error), run_folder=str(path))

    # --- who may say what ---

    def _from_itself(self, message: JoinNode) -> bool:
        its_own = _bear_its_name(message.node, (worker.worker for worker in message.workers))
        return self.sender == message.scheduler and its_own

    def _from_that_node(self, message: NodeLeaving | NodeLeft) -> bool:
        node = self._nodes.get(message.node)
        workers = message.workers if isinstance(message, NodeLeaving) else ()
        is_its_own = node is not None and self.sender == node.scheduler
        return is_its_own and _bear_its_name(message.node, workers)

    def _from_runner(self, message: Message) -> bool:
        return self._runner is not None and self.sender == self._runner

    # --- nodes ---

    @handles(JoinNode, only=_from_itself)
    async def on_join(self, message: JoinNode) -> NodeJoined | NodeRefused:
        """A node is there, or says anew what it has."""
        known = self._nodes.get(message.node)
        if known is not None and known.scheduler != message.scheduler:
            return NodeRefused(
                f"there is a node `{message.node}` at {known.scheduler.address}; give this one"
                " another --name, or end the other"
            )
        if known is None:
            self.watch(message.scheduler)
            log.info("node_joined", node=message.node, pool=message.pool)
        self._nodes[message.node] = message
        self._leaving.discard(message.node)
        self._left.pop(message.node, None)
        if self._runner is not None:
            self.tell(self._runner, message)
        elif self._end is not None:  # it may have been out of reach when its job ended
            try_tell(self, message.scheduler, self._end)
        return NodeJoined(self.ref)

    @handles(AdmitNode, only=_from_runner)
    async def on_admit(self, message: AdmitNode) -> None:
        """A node that had to wait may join the job."""
        node = self._nodes.get(message.node)
        if node is not None and self._runner is not None:
            self.tell(self._runner, node)

    @handles(NodeLeaving, only=_from_that_node)
    async def on_leaving(self, message: NodeLeaving) -> None:
        """A node has notice, or the notice is withdrawn."""
        if message.cancelled:
            self._leaving.discard(message.node)
        else:
            self._leaving.add(message.node)
        if self._runner is not None:
            self.tell(self._runner, message)

    @handles(NodeLeft, only=_from_that_node)
    async def on_left(self, message: NodeLeft) -> None:
        """A node has given everything back."""
        self._left[message.node] = self._nodes[message.node].scheduler
        self._forget(message.node, "left after a notice")

    @handles(PreemptNode)
    async def on_preempt(self, message: PreemptNode) -> Acknowledged | NodeUnknown:
        """A user gives a node notice, or withdraws it, from one that has left too."""
        node = self._nodes.get(message.node)
        scheduler = node.scheduler if node is not None else None
        if scheduler is None and message.cancel:
            scheduler = self._left.get(message.node)
        notice = NoticeGiven(message.notice_s, message.cancel)
        if scheduler is None or not try_tell(self, scheduler, notice):
            return NodeUnknown(tuple(sorted(self._nodes)))
        return Acknowledged()

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        """A node is gone, or the job runner crashed."""
        if message.ref == self._runner:
            self._runner = None
            self._running.unlink(missing_ok=True)
            reason = f"the job runner {message.reason}; see the coordinator's log"
            self._status = msgspec.structs.replace(self._status, outcome="failed", reason=reason)
            return
        for name in [n for n, scheduler in self._left.items() if scheduler == message.ref]:
            del self._left[name]
        for name in [n for n, node in self._nodes.items() if node.scheduler == message.ref]:
            log.warning("node_lost", node=name, reason=message.reason)
            self._forget(name, message.reason)

    @handles(SubmitJob)
    async def on_submit(self, message: SubmitJob) -> JobRefused | asyncio.Task[Any]:
        """Start the job, or say why not. Others are served while its files are read."""
        if self._runner is not None:
            return JobRefused(
                f"job `{self._status.job}` is running; wait for it, or `spotlight cancel` it first"
            )
        if self._starting:
            return JobRefused("another job is about to start; try again in a moment")
        self._starting = True
        return self.run_task(self._start(message))

    async def _start(self, message: SubmitJob) -> JobAccepted | JobRefused:
        try:
            submission = await self._in_thread(lambda: read_submission(message, self._runs))
            if message.resume:
                folder, _ = RunFolder.reopen(submission.run_folder, message.job)
            else:
                folder = RunFolder.create(submission.run_folder, submission.job)
            return await self._begin(folder, submission, came_back=False)
        except UserError as error:
            return JobRefused(str(error))
        except Exception as error:  # whatever is wrong with a job, it ends no coordinator
            log.error("job_not_started", error=repr(error), exc_info=error)
            return JobRefused("the job could not be started; the coordinator's log says why")
        finally:
            self._starting = False

    @handles(CancelJob)
    async def on_cancel(self, message: CancelJob) -> JobStatus:
        """Pass it on; the answer is the status before."""
        if self._runner is not None:
            self.tell(self._runner, message)
        return self._status

    @handles(GetStatus)
    async def on_status(self, message: GetStatus) -> JobStatus:
        """The last known progress; between jobs, with the workers that are there now."""
        if self._runner is not None:
            return self._status
        return msgspec.structs.replace(self._status, workers=self._idle_workers())

    @handles(JobStatus, only=_from_runner)
    async def on_job_status(self, message: JobStatus) -> None:
        """The runner's latest word."""
        self._status = message

    @handles(JobEnded, only=_from_runner)
    async def on_job_ended(self, message: JobEnded) -> None:
        """Write the report, then say so: whoever sees the outcome finds the report."""
        await self._stop_runner()
        try:
            await asyncio.to_thread(write_report, Path(message.status.run_folder))
        except Exception as error:  # whatever is wrong with a report, the job has ended
            log.error("report_not_written", reason=f"{type(error).__name__}: {error}")
        self._running.unlink(missing_ok=True)
        self._status = message.status
        self.run_task(self._dismiss(self._end))

    @handles(RunAgain, only=_from_runner)
    async def on_run_again(self, message: RunAgain) -> None:
        """Go on with the job as after a kill, with whoever is there."""
        path = Path(self._running.read_text(encoding="utf-8"))
        await self._stop_runner()
        await self._go_on(path)

    async def _stop_runner(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await self.system.stop(runner)
            await self.system.wait_stopped(runner)

    async def _begin(
        self, folder: RunFolder, submission: Submission, *, came_back: bool
    ) -> JobAccepted:
        job, nodes = submission.job, dict(self._nodes)
        async with AsyncExitStack() as undo:
            undo.callback(folder.close)
            identity = self._identify(folder, job)
            store = self._open_store(folder.path / "artifacts", identity.token)
            await store.start()
            undo.push_async_callback(store.aclose)
            self._runs.mkdir(parents=True, exist_ok=True)
            replace_file(self._running, str(folder.path.resolve()).encode())
            end = EndJob(identity.job_id, folder.journal.term)
            runner = await self.spawn(
                lambda: JobRunner(
                    job,
                    identity.job_id,
                    coordinator=self.ref,
                    folder=folder,
                    came_back=came_back,
                    nodes=tuple(nodes.values()),
                    store=store,
                    files=submission.files,
                    timings=self._timings,
                ),
                f"job-{identity.job_id}",
                mailbox=_RUNNER_MAILBOX,
            )
            undo.pop_all()  # it is the runner's to close now
        self._runner, self._end = runner, end
        self._status = JobStatus(job=job.name, phase="preparing")
        self.watch(runner)
        self._tell_changes(runner, nodes)
        return JobAccepted(identity.job_id, str(folder.path))

    def _tell_changes(self, runner: ActorRef, known: dict[str, JoinNode]) -> None:
        """Nodes that came or went while the runner started, which knows these."""
        for name, node in known.items():
            now = self._nodes.get(name)
            if now is None or now.scheduler != node.scheduler:
                self.tell(runner, NodeDown(name, "it left as the job began", False))
        for name, node in self._nodes.items():
            if known.get(name) != node:
                self.tell(runner, node)

    async def _dismiss(self, end: EndJob | None) -> None:
        """Tell all nodes that the job is over, a few times, as any message may be lost."""
        for _ in range(_DISMISSALS):
            await asyncio.sleep(self._timings.coordinator.dismissal_pause_s)
            if end is None or self._runner is not None or self._end != end:
                return
            for node in self._nodes.values():
                try_tell(self, node.scheduler, end)

    def _identify(self, folder: RunFolder, job: JobSpec) -> Identity:
        """A run keeps its name and token for as long as its folder lives."""
        known = read_identity(folder.journal)
        if known is not None:
            return known
        identity = Identity(
            f"{job.name}-{self._rng.getrandbits(48):012x}", f"{self._rng.getrandbits(128):032x}"
        )
        save_identity(folder.journal, identity)
        return identity

    @property
    def _running(self) -> Path:
        """Names the run folder of the job that runs, for a coordinator that comes back."""
        return self._runs / ".running"

    def _forget(self, name: str, reason: str) -> None:
        del self._nodes[name]
        announced = name in self._leaving
        self._leaving.discard(name)
        if self._runner is not None:
            self.tell(self._runner, NodeDown(name, reason, announced))

    async def _in_thread(self, read: Callable[[], Read]) -> Read:
        """Read in a thread, which is left behind when a disk does not answer in time."""
        limit_s = self._timings.coordinator.read_limit_s
        thread = AbandonableThread("reader")
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.get_running_loop().run_in_executor(thread, read)
        except TimeoutError as error:
            raise RequestRefused(
                f"the files of the job could not be read within {limit_s:g} s; look whether their"
                " disk answers"
            ) from error
        finally:
            thread.close()

    def _idle_workers(self) -> tuple[WorkerStatus, ...]:
        return tuple(
            WorkerStatus(worker.worker, node.node, node.pool, "idle", "")
            for node in self._nodes.values()
            for worker in node.workers
        )


def _bear_its_name(node: str, workers: Iterable[str]) -> bool:
    """Whether a node speaks of its own workers alone."""
    return all(worker.rpartition("/")[0] == node for worker in workers)
