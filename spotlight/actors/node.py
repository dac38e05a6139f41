"""The node scheduler: starts and watches the workers of one machine, and keeps the node's copy of
the weights.

Messages in: WorkerUp (workers), PrepareJob, HoldWeights, EndJob (coordinator), Down (coordinator
gone).
Messages out: JoinNode (coordinator); PrepareJob, HoldWeights, EndJob (workers).

Workers outlive jobs and coordinators: a node whose coordinator is gone keeps its workers warm and
joins again. A worker process that ends is started again, a few times at most. Each weights version
is fetched once for the node; its workers read that copy.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from spotlight.actors.delivery import try_tell
from spotlight.actors.launcher import ProcessHandle, ProcessLauncher
from spotlight.actors.messages import (
    EndJob,
    HoldWeights,
    JoinNode,
    NodeJoined,
    PrepareJob,
    WorkerRefs,
    WorkerUp,
)
from spotlight.actors.runtime import Actor, Down, handles
from spotlight.errors import ActorError, TransferFailed
from spotlight.transport.tensors import BundleOffer, BundleStore, fetch

log = structlog.get_logger(__name__)

_JOIN_LIMIT_S = 5.0
_JOIN_PAUSE_S = 0.5
_RESTARTS = 3
_RESTART_WINDOW_S = 60.0


@dataclass(frozen=True)
class NodeSettings:
    """What a node is: given on its command line."""

    name: str
    pool: Literal["reserved", "spot"]
    workers: int
    host: str
    """Address that workers bind."""
    threads: int
    """Torch threads per worker."""
    coordinator: str
    """Control address of the coordinator."""
    logs: Path
    pid: int


class NodeScheduler(Actor):
    """See the module's docstring."""

    def __init__(
        self, settings: NodeSettings, store: BundleStore, launcher: ProcessLauncher
    ) -> None:
        self._settings = settings
        self._store = store
        self._launcher = launcher
        self._workers: dict[str, WorkerRefs] = {}
        self._processes: dict[str, ProcessHandle] = {}
        self._restarts: dict[str, deque[float]] = {}
        self._job_id = ""
        self._held: set[int] = set()
        self._given_up = 0
        self._joining: asyncio.Task[None] | None = None

    async def started(self) -> None:
        """Start the workers; each says when it is up."""
        for index in range(self._settings.workers):
            self.run_task(self._keep_running(f"{self._settings.name}/{index}"))

    async def stopping(self, reason: str) -> None:
        """Workers end with their node, at once: they keep nothing that must be saved."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            await process.wait()

    @handles(WorkerUp)
    async def on_worker_up(self, message: WorkerUp) -> None:
        """A worker is warm: tell the coordinator once all that are starting are."""
        self._workers[message.refs.worker] = message.refs
        self._announce_if_all_up()

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        """The coordinator is gone: join again when it is back."""
        log.warning("coordinator_lost", reason=message.reason)
        self._announce()

    @handles(PrepareJob)
    async def on_prepare(self, message: PrepareJob) -> None:
        """Pass a job on to all workers."""
        if message.job_id != self._job_id:
            self._job_id = message.job_id
            self._held.clear()
            self._store.delete("weights")
        for worker in self._workers.values():
            try_tell(self, worker.leader, message)
            try_tell(self, worker.reward_worker, message)

    @handles(HoldWeights)
    async def on_hold_weights(self, message: HoldWeights) -> None:
        """Take the node's copy, then let the workers read it."""
        if message.job_id != self._job_id:
            return
        try:
            rollout = await self._copy(message.rollout)
            evaluation = await self._copy(message.evaluation) if message.evaluation else None
        except TransferFailed as error:
            # Its workers are granted nothing of this version; the next one may arrive.
            log.error("weights_not_fetched", version=message.version, reason=str(error))
            return
        local = HoldWeights(message.job_id, message.version, rollout, evaluation, message.keep)
        self._held.add(message.version)
        for version in self._held - set(message.keep):
            for role in ("rollout", "evaluation"):
                self._store.delete(_weights_key(version, role))
        self._held &= set(message.keep)
        for worker in self._workers.values():
            try_tell(self, worker.leader, local)

    @handles(EndJob)
    async def on_end_job(self, message: EndJob) -> None:
        """Workers stay warm, without the job."""
        for worker in self._workers.values():
            for ref in (worker.leader, worker.reward_worker, worker.trainer_rank):
                try_tell(self, ref, message)
        self._held.clear()
        self._store.delete("weights")

    async def _copy(self, offer: BundleOffer) -> BundleOffer:
        if offer.store == self._store.endpoint:
            return offer
        return self._store.put(offer.key, await fetch(offer))

    def _announce_if_all_up(self) -> None:
        if len(self._workers) + self._given_up == self._settings.workers:
            self._announce()

    def _announce(self) -> None:
        if self._joining is None or self._joining.done():
            self._joining = self.run_task(self._join())

    async def _join(self) -> None:
        coordinator = self.system.well_known(self._settings.coordinator, "coordinator")
        introduction = None
        while introduction != self._introduction():  # workers may change while we ask
            introduction = self._introduction()
            try:
                joined = await self.ask(coordinator, introduction, timeout_s=_JOIN_LIMIT_S)
            except ActorError as error:
                log.info(
                    "waiting_for_coordinator", address=self._settings.coordinator, reason=str(error)
                )
                await asyncio.sleep(_JOIN_PAUSE_S)
                introduction = None
                continue
            assert isinstance(joined, NodeJoined)
            self.watch(joined.coordinator)

    def _introduction(self) -> JoinNode:
        return JoinNode(
            self._settings.name,
            self._settings.pool,
            self.ref,
            tuple(self._workers.values()),
            self._store.endpoint,
        )

    async def _keep_running(self, name: str) -> None:
        while True:
            log.info("worker_starting", worker=name)
            process = await self._start_worker(name)
            self._processes[name] = process
            code = await process.wait()
            log.warning("worker_ended", worker=name, exit_code=code)
            if self._workers.pop(name, None) is not None:
                self._announce()
            if not self._may_restart(name):
                log.error("worker_given_up", worker=name, restarts=_RESTARTS)
                self._given_up += 1
                self._announce_if_all_up()
                return

    async def _start_worker(self, name: str) -> ProcessHandle:
        settings = self._settings
        argv = [sys.executable, "-m", "spotlight.actors.worker"]
        argv += ["--name", name, "--node", self.ref.address, "--host", settings.host]
        argv += ["--parent", str(settings.pid), "--threads", str(settings.threads)]
        log_path = settings.logs / f"{name.replace('/', '-')}.log"
        return await self._launcher.start(
            argv,
            env={**os.environ, "OMP_NUM_THREADS": str(settings.threads)},
            name=name,
            log_path=log_path,
        )

    def _may_restart(self, name: str) -> bool:
        now = asyncio.get_running_loop().time()
        recent = self._restarts.setdefault(name, deque())
        while recent and recent[0] < now - _RESTART_WINDOW_S:
            recent.popleft()
        recent.append(now)
        return len(recent) <= _RESTARTS


def _weights_key(version: int, role: str) -> str:
    return f"weights/{version:06d}-{role}"
