"""The node scheduler: starts and watches the workers of one machine, plans their SP groups, and
keeps the node's copy of the weights.

Messages in: WorkerUp, Drained, Alive, GroupFailed (workers); PrepareJob, HoldWeights, Demand,
EndJob, NoticeGiven (coordinator); Down (coordinator gone).
Messages out: JoinNode, NodeLeaving, NodeLeft, WeightsCopied, WeightsMissed (coordinator);
PrepareJob, HoldWeights, FormGroup, EndJob, Drain, AreYouThere (workers).

Workers outlive jobs and coordinators: a node whose coordinator is gone keeps its workers warm and
joins again; after five minutes it ends their job. A worker process that ends or hangs is started
again, a few times at most. Each weights version is fetched once for the node; its workers read that
copy. A worker that ends or falls silent leaves its SP group at once, and the others form new ones.

After a preemption notice the node has its workers commit and give back what they hold, and leaves.
It keeps them warm: a notice may be withdrawn, and a node that is still there long after its
deadline joins again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from spotlight.actors.node.accelerators import environment_of
from spotlight.actors.node.liveness import until_silent
from spotlight.actors.node.regrouping import Grouping
from spotlight.actors.node.weights_copies import WeightsCopies
from spotlight.actors.protocol import (
    Alive,
    Demand,
    Drain,
    Drained,
    EndJob,
    GroupFailed,
    HoldWeights,
    JoinNode,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeRefused,
    NoticeGiven,
    PrepareJob,
    WeightsCopied,
    WeightsMissed,
    WorkerRefs,
    WorkerUp,
)
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor, ActorRef, Down, Message, handles
from spotlight.actors.runtime.launcher import PARENT, WORKER_KEY, ProcessHandle, ProcessLauncher
from spotlight.errors import ActorError, TransferFailed
from spotlight.policies.departure import Departure, Standing
from spotlight.policies.notices import Notice
from spotlight.timings import Timings
from spotlight.transport.tensors import BundleStore

log = structlog.get_logger(__name__)

_RESTARTS = 3


@dataclass(frozen=True)
class NodeSettings:
    """What a node is: given on its command line."""

    name: str
    pool: Literal["reserved", "spot"]
    workers: int
    host: str
    """Address that workers bind."""
    coordinator: str
    """Control address of the coordinator."""
    logs: Path
    pid: int
    advertise: str = ""
    """Address that others reach this machine by; `host` unless given."""


class NodeScheduler(Actor):
    """See the module's docstring.

    Args:
        notices: those of the machine's cloud.
        left: called when the process is to end: the node has left because it was told to, or cannot
            join for the reason given.
        timings: how long it and its workers wait.
    """

    def __init__(
        self,
        settings: NodeSettings,
        store: BundleStore,
        launcher: ProcessLauncher,
        notices: AsyncIterator[Notice] | None = None,
        left: Callable[[str], None] = lambda reason: None,
        timings: Timings = Timings(),
    ) -> None:
        self._times = timings.node
        self._settings = settings
        self._store = store
        self._launcher = launcher
        self._notices = notices
        self._left = left
        self._must_end = False
        self._workers: dict[str, WorkerRefs] = {}
        self._processes: dict[str, ProcessHandle] = {}
        self._keys: dict[str, str] = {}
        """Of the latest process of each name."""
        self._restarts: dict[str, deque[float]] = {}
        self._liveness: dict[str, asyncio.Task[None]] = {}
        self._job_id = ""
        self._weights = WeightsCopies(store, timings.weights)
        self._grouping = Grouping(self, settings.name, timings.node)
        self._given_up = 0
        self._joining: asyncio.Task[None] | None = None
        self._lost_at: float | None = None
        """When the coordinator was lost; None while it is there."""
        self._refused_at: float | None = None
        """Since when it refuses this node; None while it does not."""
        self._coordinator: ActorRef | None = None
        """That this node has joined."""
        self._runner: ActorRef | None = None
        """Of the job that was prepared last."""
        self._departure = Departure(timings.departure)

    async def started(self) -> None:
        """Start the workers; each says when it is up."""
        for index, name in enumerate(self._names()):
            self.run_task(self._keep_running(index, name))
        self.run_task(self._keep_joining())
        if self._notices is not None:
            self.run_task(self._heed(self._notices))

    async def stopping(self, reason: str) -> None:
        """Workers end with their node, at once: they keep nothing that must be saved."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            await process.wait()

    # --- who may say what ---

    def _from_own_worker(self, message: WorkerUp) -> bool:
        refs = message.refs
        own = (refs.leader, refs.member, refs.trainer_rank)
        is_own = all(ref.address == self.sender_address for ref in own)
        return is_own and message.key == self._keys.get(refs.worker)

    def _from_leader(self, message: Message) -> bool:
        return any(refs.leader == self.sender for refs in self._workers.values())

    def _from_coordinator_process(self, message: Message) -> bool:
        known = self._coordinator
        return known is not None and self.sender_address == known.address

    def _from_coordinator(self, message: Message) -> bool:
        return self._coordinator is not None and self.sender == self._coordinator

    def _from_runner(self, message: Message) -> bool:
        return self._runner is not None and self.sender == self._runner

    # --- workers and jobs ---

    @handles(WorkerUp, only=_from_own_worker)
    async def on_worker_up(self, message: WorkerUp) -> None:
        """A worker is warm: tell the coordinator once all that are starting are."""
        refs = message.refs
        if self._workers.get(refs.worker) == refs:
            return
        self._workers[refs.worker] = refs
        self._grouping.add(refs)
        self._liveness[refs.worker] = self.run_task(self._end_if_silent(refs))
        if self._departure.notice is not None:
            self._drain((refs,))
        self._announce_if_all_up()

    @handles(PrepareJob, only=_from_coordinator_process)
    async def on_prepare(self, message: PrepareJob) -> None:
        """Pass a job on to all workers."""
        self._runner = self.sender
        if message.job_id != self._job_id:
            self._job_id = message.job_id
            log.debug("job_begun", actor="node")
            self._weights.begin(message.job_id)
            self._grouping.end_job()
        for worker in self._workers.values():
            for ref in (worker.leader, worker.trainer_rank):
                try_tell(self, ref, message)

    @handles(HoldWeights, only=_from_runner)
    async def on_hold_weights(self, message: HoldWeights) -> None:
        """Take the node's copy, then let the workers read it."""
        if message.job_id == self._job_id:
            self.run_task(self._hold_weights(message, self.sender))

    @handles(Demand, only=_from_runner)
    async def on_demand(self, message: Demand) -> None:
        """What the SP groups should be good for."""
        if message.job_id == self._job_id:
            self._grouping.accept_notice(message)

    @handles(GroupFailed, only=_from_leader)
    async def on_group_failed(self, message: GroupFailed) -> None:
        """A group did not form, or broke."""
        self._grouping.failed(message)

    @handles(Alive, only=_from_leader)
    async def on_alive(self, message: Alive) -> None:
        """A worker is ready for a job."""
        self._grouping.hear(message)

    @handles(EndJob, only=_from_coordinator_process)
    async def on_end_job(self, message: EndJob) -> None:
        """Workers stay warm, without the job."""
        self._end_job(message)

    async def _hold_weights(self, message: HoldWeights, asker: ActorRef | None) -> None:
        answer: Message
        try:
            local = await self._weights.hold(message)
        except TransferFailed as error:
            # Until it can be had elsewhere, the workers are granted nothing of this version.
            log.warning("weights_not_fetched", version=message.version, reason=str(error))
            answer = WeightsMissed(self._settings.name, message.version, message.rollout.store)
        else:
            if local is None:
                return
            if asker != self._runner:
                return  # another runner may have gone back, and mean other weights by that version
            self._tell_leaders(local)
            held = (local.rollout, local.evaluation)
            answer = WeightsCopied(self._settings.name, message.version, *held)
        if asker is not None:
            try_tell(self, asker, answer)

    def _end_job(self, message: EndJob) -> None:
        if message.job_id == self._job_id:
            self._grouping.end_job()  # before any of a group has forgotten the model
        for worker in self._workers.values():
            for ref in (worker.leader, worker.trainer_rank):
                try_tell(self, ref, message)
        if message.job_id == self._job_id:
            self._job_id = ""
            log.debug("job_forgotten", actor="node")
            self._weights.begin("")

    def _tell_leaders(self, message: Message) -> None:
        for worker in self._workers.values():
            try_tell(self, worker.leader, message)

    # --- leaving ---

    async def _heed(self, notices: AsyncIterator[Notice]) -> None:
        async for notice in notices:
            if notice.kind == "advise":
                log.warning("node_at_risk", source=notice.source, event=notice.event_id)
            elif notice.kind == "cancel":
                self._withdraw("cloud")
            else:
                self._leave("cloud", notice.source, notice.lead_s)

    @handles(NoticeGiven, only=_from_coordinator)
    async def on_notice_given(self, message: NoticeGiven) -> None:
        """A user gives notice, or takes it back."""
        if message.cancel:
            self._withdraw("user")
        else:
            self._leave("user", "user", message.notice_s)

    @handles(Drained, only=_from_leader)
    async def on_drained(self, message: Drained) -> None:
        """When no worker holds anything, the node has left."""
        refs = self._workers.get(message.worker)
        if refs is not None and refs.epoch == message.epoch:
            self._departure.drained(message.worker)
            self._leave_if_drained()

    def _leave(self, via: str, source: str, lead_s: float | None) -> None:
        log.warning("node_leaving", source=source, lead_s=lead_s)
        self._must_end = self._must_end or source == "signal"
        self._departure.give(via, source, lead_s, asyncio.get_running_loop().time())
        self._go_on_leaving()

    def _withdraw(self, via: str) -> None:
        if self._departure.withdraw(via):
            if self._departure.notice is None:
                self._stay("withdrawn")
            else:
                self._go_on_leaving()

    def _go_on_leaving(self) -> None:
        self._tell_leaving()
        self._drain(tuple(self._workers.values()))
        notice = self._departure.notice
        assert notice is not None, "the node leaves for a reason"
        self.run_task(self._stay_if_outlived(notice))
        self._leave_if_drained()

    def _drain(self, workers: tuple[WorkerRefs, ...]) -> None:
        """Tell them to finish, or to go on if no notice stands."""
        now = asyncio.get_running_loop().time()
        stop_in_s = self._departure.stop_in_s(now) if self._departure.notice is not None else None
        for worker in workers:
            try_tell(self, worker.leader, Drain(stop_in_s))

    def _leave_if_drained(self) -> None:
        if self._departure.may_leave(self._workers):
            log.warning("node_left")
            self._tell_coordinator(NodeLeft(self._settings.name))
        if self._departure.left and self._must_end:
            self._left("")

    async def _stay_if_outlived(self, notice: Standing) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(
            notice.deadline + self._departure.timings.outlived_after_s - loop.time()
        )
        if self._departure.notice == notice:
            self._stay("outlived")

    def _stay(self, reason: str) -> None:
        log.warning("node_stays", reason=reason)
        had_left = self._departure.stay()
        self._drain(tuple(self._workers.values()))
        if had_left:
            self._announce()
        else:
            self._tell_leaving(cancelled=True)

    def _tell_leaving(self, *, cancelled: bool = False) -> None:
        notice = self._departure.notice
        self._tell_coordinator(
            NodeLeaving(
                self._settings.name,
                tuple(self._workers),
                notice.source if notice else "",
                notice.lead_s if notice else None,
                cancelled,
            )
        )

    def _tell_coordinator(self, message: Message) -> None:
        try_tell(self, self._coordinator_now(), message)

    def _coordinator_now(self) -> ActorRef:
        """Whichever is there when a message arrives."""
        return self.system.well_known(self._settings.coordinator, "coordinator")

    # --- membership ---

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        """The coordinator is gone: join again when it is back."""
        log.warning("coordinator_lost", reason=message.reason)
        if self._lost_at is None:
            self._lost_at = asyncio.get_running_loop().time()
        self._announce()

    def _announce_if_all_up(self) -> None:
        if len(self._workers) + self._given_up == self._settings.workers:
            self._announce()

    def _announce(self) -> None:
        if self._joining is None or self._joining.done():
            self._joining = self.run_task(self._join())

    async def _keep_joining(self) -> None:
        """Who lost sight of us for a while may have forgotten us, and our watch may not know."""
        while True:
            await asyncio.sleep(self._times.join_again_s)
            if self._joining is not None and self._departure.notice is None:
                self._announce()

    async def _join(self) -> None:
        introduction = None
        # Workers may change while we ask.
        while not self._departure.left and introduction != self._introduction():
            introduction = self._introduction()
            try:
                to = self._coordinator_now()
                joined = await self.ask(to, introduction, timeout_s=self._times.join_limit_s)
            except ActorError as error:
                log.info(
                    "waiting_for_coordinator", address=self._settings.coordinator, reason=str(error)
                )
                self._end_job_if_alone()
                await asyncio.sleep(self._times.join_pause_s)
                introduction = None
                continue
            if isinstance(joined, NodeRefused):
                self._end_if_refused_long(joined.reason)
                await asyncio.sleep(self._times.join_pause_s)
                introduction = None
                continue
            assert isinstance(joined, NodeJoined)
            self._lost_at = self._refused_at = None
            self._coordinator = joined.coordinator
            self.watch(joined.coordinator)
            if self._departure.notice is not None:
                self._tell_leaving()  # one that came back has not heard it

    def _end_if_refused_long(self, reason: str) -> None:
        log.error("join_refused", reason=reason)
        now = asyncio.get_running_loop().time()
        if self._refused_at is None:
            self._refused_at = now
        if now - self._refused_at >= self._times.refused_limit_s:
            self._left(reason)

    def _end_job_if_alone(self) -> None:
        """Nobody may ever come for what the workers compute."""
        now = asyncio.get_running_loop().time()
        if (
            self._lost_at is not None
            and now - self._lost_at > self._times.away_limit_s
            and self._job_id
        ):
            log.error("job_ended_without_coordinator", job=self._job_id)
            self._end_job(EndJob(self._job_id))

    def _introduction(self) -> JoinNode:
        return JoinNode(
            self._settings.name,
            self._settings.pool,
            self.ref,
            tuple(self._workers.values()),
            self._store.writable_by(self._settings.name),
        )

    def _names(self) -> list[str]:
        """Of the workers."""
        return [f"{self._settings.name}/{index}" for index in range(self._settings.workers)]

    async def _keep_running(self, index: int, name: str) -> None:
        while True:
            log.info("worker_starting", worker=name)
            process = await self._start_worker(name, index)
            self._processes[name] = process
            starting = self.run_task(self._end_if_not_up(name, process))
            code = await process.wait()
            self._grouping.remove(name)  # before all else: others wait for it
            starting.cancel()
            log.warning("worker_ended", worker=name, exit_code=code)
            self._departure.restarted(name)
            if self._workers.pop(name, None) is not None:
                self._liveness.pop(name).cancel()
                self._announce()
                self._leave_if_drained()
            if not self._may_restart(name):
                log.error("worker_given_up", worker=name, restarts=_RESTARTS)
                self._given_up += 1
                self._announce_if_all_up()
                return
            await asyncio.sleep(self._times.restart_pause_s)

    async def _end_if_not_up(self, name: str, process: ProcessHandle) -> None:
        await asyncio.sleep(self._times.start_limit_s)
        if name not in self._workers:
            log.error("worker_hangs_as_it_starts", worker=name)
            process.kill()

    async def _end_if_silent(self, refs: WorkerRefs) -> None:
        name, times, grouping = refs.worker, self._times, self._grouping

        def heard(answer: Message) -> None:
            assert isinstance(answer, Alive)
            grouping.hear(answer)
            if answer.draining != (self._departure.notice is not None):
                self._drain((refs,))  # it was told, but perhaps in vain

        await until_silent(
            self,
            refs.leader,
            every_s=lambda: times.ask_grouped_s if grouping.is_grouped(name) else times.ask_alone_s,
            silent_s=times.silent_s,
            heard=heard,
            suspect=lambda: grouping.lose_sight(name),
        )
        log.error("worker_hangs", worker=refs.worker)
        self._processes[refs.worker].kill()

    async def _start_worker(self, name: str, index: int) -> ProcessHandle:
        settings = self._settings
        key = self._keys[name] = f"{self.system.rng.getrandbits(64):016x}"
        own = {"OMP_NUM_THREADS": "1"}  # until a job says otherwise
        own |= {WORKER_KEY: key, PARENT: str(settings.pid)}
        own |= environment_of(index, os.environ)
        argv = [sys.executable, "-m", "spotlight.actors.worker.process"]
        argv += ["--name", name, "--node", self.ref.address, "--host", settings.host]
        argv += ["--advertise", settings.advertise]
        log_path = settings.logs / f"{name.replace('/', '-')}.log"
        return await self._launcher.start(
            argv,
            env={**os.environ, **own},
            name=name,
            log_path=log_path,
        )

    def _may_restart(self, name: str) -> bool:
        now = asyncio.get_running_loop().time()
        recent = self._restarts.setdefault(name, deque())
        while recent and recent[0] < now - self._times.restart_window_s:
            recent.popleft()
        recent.append(now)
        return len(recent) <= _RESTARTS
