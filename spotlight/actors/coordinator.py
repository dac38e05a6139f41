"""The coordinator: knows the nodes, and runs one job at a time.

Messages in: JoinNode (nodes), SubmitJob, CancelJob, GetStatus (users), JobStatus, JobEnded (job
runner), Down (a node or the runner).
Messages out: NodeJoined, JobAccepted, JobRefused, JobStatus; JoinNode, NodeDown, CancelJob to the
job runner.

A node that joins again replaces its earlier self. When the job runner crashes the job has failed,
its run folder stays resumable and the coordinator goes on.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import structlog

from spotlight.actors.job_runner import JobRunner
from spotlight.actors.messages import (
    CancelJob,
    GetStatus,
    JobAccepted,
    JobEnded,
    JobRefused,
    JobStatus,
    JoinNode,
    NodeDown,
    NodeJoined,
    SubmitJob,
    WorkerStatus,
)
from spotlight.actors.runtime import Actor, ActorRef, Down, handles
from spotlight.assets import read_prompts
from spotlight.errors import UserError
from spotlight.jobs import JobSpec
from spotlight.preflight import check
from spotlight.store.run_folder import RunFolder, SavedProgress, next_run_folder
from spotlight.transport.tensors import BundleStore
from spotlight.web.report import write_report

log = structlog.get_logger(__name__)


class Coordinator(Actor):
    """See the module's docstring.

    Args:
        runs: folder for run folders whose path is not given.
        host: address that the run folder's store binds.
        rng: source of job ids and tokens.
    """

    def __init__(self, runs: Path, host: str, rng: random.Random) -> None:
        self._runs = runs
        self._host = host
        self._rng = rng
        self._nodes: dict[str, JoinNode] = {}
        self._runner: ActorRef | None = None
        self._status = _no_job()

    @handles(JoinNode)
    async def on_join(self, message: JoinNode) -> NodeJoined:
        """A node is there, or says anew what it has."""
        known = self._nodes.get(message.node)
        if known is not None and known.scheduler != message.scheduler:
            self._forget(message.node, "it came back as a new process")
        if known is None or known.scheduler != message.scheduler:
            self.watch(message.scheduler)
            log.info("node_joined", node=message.node, pool=message.pool)
        self._nodes[message.node] = message
        if self._runner is not None:
            self.tell(self._runner, message)
        return NodeJoined(self.ref)

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        """A node is gone, or the job runner crashed."""
        if message.ref == self._runner:
            self._runner = None
            reason = f"the job runner {message.reason}; see the coordinator's log"
            self._status = msgspec.structs.replace(self._status, outcome="failed", reason=reason)
            return
        for name in [n for n, node in self._nodes.items() if node.scheduler == message.ref]:
            log.warning("node_lost", node=name, reason=message.reason)
            self._forget(name, message.reason)

    @handles(SubmitJob)
    async def on_submit(self, message: SubmitJob) -> JobAccepted | JobRefused:
        """Start the job, or say why not."""
        if self._runner is not None:
            return JobRefused(
                f"job `{self._status.job}` is running; wait for it, or `spotlight cancel` it first"
            )
        try:
            return await self._begin(message)
        except UserError as error:
            return JobRefused(str(error))

    @handles(CancelJob)
    async def on_cancel(self, message: CancelJob) -> JobStatus:
        """Pass it on; the answer is the status before."""
        if self._runner is not None:
            self.tell(self._runner, message)
        return self._status

    @handles(GetStatus)
    async def on_status(self, message: GetStatus) -> JobStatus:
        """The last known progress; between jobs, which workers wait."""
        if self._status.job:
            return self._status
        return msgspec.structs.replace(self._status, workers=self._idle_workers())

    @handles(JobStatus)
    async def on_job_status(self, message: JobStatus) -> None:
        """The runner's latest word."""
        if self.sender == self._runner:
            self._status = message

    @handles(JobEnded)
    async def on_job_ended(self, message: JobEnded) -> None:
        """Write the report, then say so: whoever sees the outcome finds the report."""
        if self._runner is not None and self._runner != self.sender:
            return  # the last word of a crashed runner; another job runs by now
        runner, self._runner = self._runner, None
        if runner is not None:
            await self.system.stop(runner)
            await self.system.wait_stopped(runner)
        try:
            await asyncio.to_thread(write_report, Path(message.status.run_folder))
        except (UserError, OSError) as error:
            log.error("report_not_written", reason=str(error))
        self._status = message.status

    async def _begin(self, message: SubmitJob) -> JobAccepted:
        folder, job, progress = self._open(message)
        try:
            check(job, run_folder=folder.path, local_workers=False)
            train = read_prompts(job.prompts.train)
            validation = read_prompts(job.prompts.validation)
            store = BundleStore(
                folder.path / "artifacts",
                token=f"{self._rng.getrandbits(128):032x}",
                host=self._host,
            )
            await store.start()
        except BaseException:
            folder.close()
            raise
        job_id = f"{job.name}-{self._rng.getrandbits(48):012x}"
        nodes = tuple(self._nodes.values())
        self._status = msgspec.structs.replace(_no_job(), job=job.name, phase="preparing")
        self._runner = await self.spawn(
            lambda: JobRunner(
                job,
                job_id,
                coordinator=self.ref,
                folder=folder,
                progress=progress,
                nodes=nodes,
                store=store,
                train_prompts=train,
                validation_prompts=validation,
            ),
            f"job-{job_id}",
        )
        self.watch(self._runner)
        return JobAccepted(job_id, str(folder.path))

    def _open(self, message: SubmitJob) -> tuple[RunFolder, JobSpec, SavedProgress | None]:
        if message.resume:
            return RunFolder.reopen(Path(message.run_folder), message.job)
        path = (
            Path(message.run_folder)
            if message.run_folder
            else next_run_folder(self._runs, message.job.name)
        )
        return RunFolder.create(path, message.job), message.job, None

    def _forget(self, name: str, reason: str) -> None:
        del self._nodes[name]
        if self._runner is not None:
            self.tell(self._runner, NodeDown(name, reason))

    def _idle_workers(self) -> tuple[WorkerStatus, ...]:
        return tuple(
            WorkerStatus(worker.worker, node.node, node.pool, "idle", "")
            for node in self._nodes.values()
            for worker in node.workers
        )


def _no_job() -> JobStatus:
    return JobStatus(
        job="",
        phase="waiting",
        iteration=0,
        iterations=0,
        weights_version=0,
        elapsed_s=0.0,
        done=0,
        wanted=0,
        images_per_s=0.0,
        reward_mean=None,
        validation=(),
        workers=(),
        previews=0,
        reissued=0,
        late=0,
        dead_letters=0,
        outcome="",
        reason="",
        run_folder="",
    )
