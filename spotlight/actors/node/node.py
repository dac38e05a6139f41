"""The node scheduler: starts and watches the workers of one machine, plans their SP groups, and
keeps the node's copy of the weights and of the checkpoint.

Messages in: WorkerUp, WorkerReport (workers); NodePlan (coordinator); DropBundles (job runner);
Down (coordinator gone).
Messages out: NodeReport (coordinator); WorkerPlan (workers).

Workers outlive jobs and coordinators: a node whose coordinator is gone keeps its workers warm and
joins again; after five minutes it ends their job. A worker process that ends or hangs is started
again, a few times at most (`worker_lives`), and so is one that the plan names as sick. Each weights
version is fetched once for the node; its workers read that
copy. A worker that ends or falls silent leaves its SP group at once, and the others form new ones.

After a preemption notice the node has its workers commit and give back what they hold, and leaves.
It keeps them warm: a notice may be withdrawn, and a node that is still there long after its
deadline joins again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from spotlight.actors.node.accelerators import environment_of, problem_of
from spotlight.actors.node.checkpoint_files import CheckpointFiles
from spotlight.actors.node.coordinator_link import CoordinatorLink
from spotlight.actors.node.enrolment import Enrolment
from spotlight.actors.node.kept_bundles import KeptBundles
from spotlight.actors.node.leaving import Leaving
from spotlight.actors.node.liveness import until_silent
from spotlight.actors.node.regrouping import Grouping
from spotlight.actors.node.weights_copies import WeightsCopies
from spotlight.actors.node.worker_lives import WorkerLives
from spotlight.actors.node.worker_plans import WorkerPlans
from spotlight.actors.protocol.artifacts import LEFT_BY_TRAINERS
from spotlight.actors.protocol.door import Role
from spotlight.actors.protocol.down import DropBundles, GroupPlan, JobPlan, NodePlan
from spotlight.actors.protocol.gradients import GRADIENTS
from spotlight.actors.protocol.handed_keys import WorkerKeys
from spotlight.actors.protocol.up import NodeReport, WorkerRefs, WorkerReport, WorkerUp
from spotlight.actors.runtime import Actor, ActorRef, Down, Message, handles
from spotlight.actors.runtime.launcher import PARENT, ProcessHandle, ProcessLauncher
from spotlight.errors import UserError
from spotlight.permissions import Permissions
from spotlight.policies.ledger.node_times import NodeTimes
from spotlight.policies.notices import Notice
from spotlight.record.ledger import Price
from spotlight.timings import Timings
from spotlight.transport.control.keys import KeyPair, key_of
from spotlight.transport.tensors import BundleStore
from spotlight.types import StoreEndpoint

log = structlog.get_logger(__name__)

_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""What workers' processes have unless the node's own says something else: with workspaces of its
own cuBLAS adds in the same order every time, as gradients of slices must be."""


@dataclass(frozen=True)
class NodeSettings:
    """What a node is: given on its command line."""

    name: str
    pool: Literal["reserved", "spot"]
    workers: int
    host: str
    """Address that workers bind."""
    coordinator: str
    """Control address of the coordinator, with its key."""
    logs: Path
    pid: int
    advertise: str = ""
    """Address that others reach this machine by; `host` unless given."""
    permissions: Permissions = Permissions()
    """What jobs may do on this machine."""
    machine_s: float = 0.0
    """The machine had been starting for so long when this process began, if that was for it."""
    process_s: float = 0.0
    """The process had been there for so long when the node began."""
    price: Price | None = None
    """What a GPU of it costs, if that is known here."""

    @property
    def workers_by_name(self) -> list[str]:
        """The names of its workers."""
        return [f"{self.name}/{index}" for index in range(self.workers)]

    def log_of(self, worker: str) -> Path:
        """The file that everything goes to which the worker of that name prints."""
        return self.logs / f"{worker.replace('/', '-')}.log"


class NodeScheduler(Actor):
    """See the module's docstring.

    Args:
        keys_for: makes the pair of keys of a worker of that name.
        notices: those of the machine's cloud.
        enrolment: by which the coordinator knows this node, unless it knew it from the beginning.
        left: called when the process is to end: the node has left because it was told to, or cannot
            join, for which there is an error.
        timings: how long it and its workers wait.
    """

    def __init__(
        self,
        settings: NodeSettings,
        store: BundleStore,
        launcher: ProcessLauncher,
        keys_for: Callable[[str], KeyPair],
        notices: AsyncIterator[Notice] | None = None,
        enrolment: Enrolment | None = None,
        left: Callable[[UserError | None], None] = lambda error: None,
        timings: Timings = Timings(),
    ) -> None:
        self._left = left
        self._times = timings.node
        self._settings = settings
        self._store = store
        self._launcher = launcher
        self._notices = notices
        self._workers: dict[str, WorkerRefs] = {}
        self._processes: list[ProcessHandle] = []
        self._pairs = {name: keys_for(name) for name in self._settings.workers_by_name}
        """Keys of the workers. One that is started again has the same."""
        self._starts: dict[str, str] = {}
        """What each process that runs was handed at its start, and is known by; by worker."""
        self._accelerators: dict[str, dict[str, str]] = {}
        """What the environment says of them, by worker."""
        self._lives = WorkerLives(self._settings.workers_by_name, timings.node)
        self._liveness: dict[str, asyncio.Task[None]] = {}
        self._job: JobPlan | None = None
        """The job of the latest plan, with its spec."""
        self._weights = WeightsCopies(self, store, timings.weights)
        self._lent = WeightsCopies(self, store, timings.weights, self._weights)
        """What trainer ranks lend to those who compute slices of their updates."""
        self._checkpoint = CheckpointFiles(self, store, timings)
        self._kept = KeptBundles(self, store)
        self._grouping = Grouping(self, settings.name, timings.node)
        self._plans = WorkerPlans(self)
        self._link = CoordinatorLink(self, settings.coordinator, enrolment, timings.node)
        self._leaving = Leaving(self, self._plans, self._link, timings.departure)
        self._worked: NodeTimes
        """What the workers did."""

    async def started(self) -> None:
        """Start the workers; each says when it is up."""
        names = self._settings.workers_by_name
        self._worked = NodeTimes(names, self._now(), self._settings.process_s)
        guests = self.system.guests
        guests.admit(key_of(self._settings.coordinator), "coordinator")
        for key, role in self._worker_roles().items():
            guests.admit(key, role)
        for index, name in enumerate(self._settings.workers_by_name):
            self.run_task(self._keep_running(index, name))
        if self._notices is not None:
            self.run_task(self._leaving.follow_cloud(self._notices))

    async def stopping(self, reason: str) -> None:
        """Workers end with their node, at once: they keep nothing that must be saved."""
        self._link.report_at_last()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            await process.wait()

    # --- who may say what ---

    def _from_own_worker(self, message: WorkerUp) -> bool:
        refs = message.refs
        own = (refs.leader, refs.member, refs.trainer_rank)
        is_own = all(ref.address == self.sender_address for ref in own)
        return is_own and message.start == self._starts.get(refs.worker)

    def _from_its_leader(self, message: WorkerReport) -> bool:
        refs = self._workers.get(message.worker)
        if refs is None or message.epoch != refs.epoch:
            return False
        return self.sender == refs.leader

    def _from_coordinator(self, message: NodePlan) -> bool:
        known = self._link.coordinator
        return known is not None and self.sender == known

    def _from_runner(self, message: DropBundles) -> bool:
        return self._job is not None and self.sender == self._job.membership.runner

    # --- workers and jobs ---

    @handles(WorkerUp, only=_from_own_worker)
    async def on_worker_up(self, message: WorkerUp) -> None:
        """A worker is warm: tell the coordinator once all that are starting are."""
        refs = message.refs
        if self._workers.get(refs.worker) == refs:
            return
        if problem := problem_of(message.device, self._accelerators[refs.worker]):
            log.error("worker_without_accelerator", worker=refs.worker, reason=problem)
            self._lives.kill(refs.worker, problem)
            return
        self._workers[refs.worker] = refs
        self._grouping.add(refs)
        self._plans.add(refs)
        self._liveness[refs.worker] = self.run_task(self._end_if_silent(refs))
        self._report_if_all_up()

    @handles(NodePlan, only=_from_coordinator)
    async def on_plan(self, message: NodePlan) -> None:
        """What this node is to do from now on."""
        self._link.accept(message)

    def follow(self, plan: NodePlan) -> None:
        """Have what the latest plan says."""
        self._leaving.follow_user(plan.coordinator, plan.notice)
        self._leaving.follow_sharing(plan.give_back_in_s)
        if plan.job is not None:
            self._follow_job(plan.job)
        elif plan.over:
            self.end_job()
        if self._job is not None and plan.demand is not None:
            self._grouping.set_demand(plan.demand)
        self._lives.end_sick(plan.sick, self._workers.values())

    def _follow_job(self, job: JobPlan) -> None:
        known = self._job
        if known is None or known.job_id != job.job_id:
            if job.spec is None:
                return  # it is told again with its spec
            self._grouping.end_job()
            self._weights.begin(job.job_id)
            self._lent.begin(job.job_id)
            self._checkpoint.begin(job.spec.model.checkpoint)
            if self._settings.pool == "reserved":
                self._kept.begin()
            log.debug("job_begun", actor="node", job=job.job_id)
        elif job.spec is None:
            job = msgspec.structs.replace(job, spec=known.spec)
        self._job = job
        is_another = self._worked.work_for(job.job_id, self._now())
        self._lives.follow_job(job)
        self._weights.follow(job.weights, job.versions)
        self._lent.follow(job.lent, [offer.version for offer in job.lent])
        self._checkpoint.follow(job.checkpoint)
        self._kept.follow(job.keeping)
        self._tell_workers_job()
        if is_another:
            self._link.report()

    @handles(DropBundles, only=_from_runner)
    async def on_drop(self, message: DropBundles) -> None:
        """Nobody needs these samples and commits."""
        self._kept.drop(message.keys)

    def files_changed(self) -> None:
        """A version, or the checkpoint, has come, or could not be had."""
        self._tell_workers_job()
        self._link.report()

    def _tell_workers_job(self) -> None:
        job = self._job if self._checkpoint.may_begin else None
        if job is not None:
            weights, lent = self._weights.held, self._lent.held
            job = msgspec.structs.replace(job, weights=weights, lent=lent, checkpoint=None)
        self._plans.set_job(job)

    @handles(WorkerReport, only=_from_its_leader)
    async def on_report(self, message: WorkerReport) -> None:
        """How a worker stands."""
        self._note(message)

    def end_job(self) -> None:
        """Workers stay warm, without the job."""
        if self._job is not None:
            log.debug("job_forgotten", actor="node", job=self._job.job_id)
            self._grouping.end_job()  # before any of a group has forgotten the model
            self._job = None
            self._lives.follow_job(None)
            self._tell_workers_job()
            self._weights.begin("")
            self._lent.begin("")
            self._checkpoint.begin("")
            self._kept.end()
            self._worked.work_for("", self._now())
            self._link.report()

    def _note(self, report: WorkerReport) -> None:
        self._worked.does(report.worker, report.state, self._now())
        self._plans.note(report)
        self._grouping.note(report)
        self._checkpoint.note(report)
        if self._lives.note(report):
            self._link.report()
        if self._plans.is_drained(report):
            self._leaving.drained(report.worker)

    # --- what its parts ask and say ---

    @property
    def workers(self) -> Iterable[str]:
        """Those that are up, by name."""
        return self._workers

    def group_of(self, worker: str) -> GroupPlan | None:
        """The SP group that a worker is to be in."""
        return self._grouping.plan_of(worker)

    def group_planned(self, worker: str) -> None:
        """The group of a worker is another one now."""
        self._plans.change(worker)

    def end(self, error: UserError | None = None) -> None:
        """The process is to end: the node has left because it was told to, or cannot join, for
        which there is an error."""
        self._left(error)

    # --- membership ---

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        """The coordinator is gone; the workers stay warm until it is back."""
        self._link.lost(message.reason)

    def _report_if_all_up(self) -> None:
        if self._all_up():
            self._link.open()

    def _all_up(self) -> bool:
        """Whether every worker is up, or known to have trouble."""
        absent = (name for name in self._settings.workers_by_name if name not in self._workers)
        return not any(map(self._lives.is_awaited, absent))

    def report(self, number: int, coordinator: ActorRef | None, plan: int) -> NodeReport:
        """What this node has and does now, as its report of that number to a coordinator whose
        latest plan had the number `plan`."""
        notice, now = self._leaving.notice, self._now()
        self._worked.leaves(notice is not None, now)
        return NodeReport(
            number,
            self._settings.name,
            self._settings.pool,
            self.ref,
            tuple(self._workers.values()),
            self._sink,
            notice=notice,
            left=self._leaving.has_left,
            coordinator=coordinator,
            plan=plan,
            job_id=self._job.job_id if self._job is not None else "",
            weights=self._weights.held,
            missed=self._weights.missed,
            lent=self._lent.held,
            lent_missed=self._lent.missed,
            checkpoint=self._checkpoint.state,
            size=self._settings.workers,
            troubles=self._lives.troubles,
            times=self._worked.told(now),
            machine_s=self._settings.machine_s,
            price=self._settings.price,
            share=self._kept.share,
        )

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    @property
    def own_store(self) -> StoreEndpoint:
        """Where its own workers leave gradients."""
        return self._store.writable_by(self._settings.name, GRADIENTS)

    @property
    def _sink(self) -> StoreEndpoint:
        """Where trainers leave things in this node's store, for those who are told of it; a node
        that does not train takes nothing from anybody."""
        name = self._settings.name
        if self._settings.pool != "reserved":
            return self._store.endpoint
        return self._store.writable_by(name, *LEFT_BY_TRAINERS)

    def _worker_roles(self) -> dict[str, Role]:
        """Of all workers, by their public keys."""
        role: Role = "trainer" if self._settings.pool == "reserved" else "worker"
        return {pair.public: role for pair in self._pairs.values()}

    async def _keep_running(self, index: int, name: str) -> None:
        while True:
            log.info("worker_starting", worker=name)
            self._worked.does(name, "starting", self._now())
            process = await self._start_worker(name, index)
            self._processes.append(process)
            self._lives.begin(name, process)
            starting = self.run_task(self._end_if_not_up(name))
            code = await process.wait()
            self._worked.does(name, "gone", self._now())
            del self._starts[name]  # what the process said last may come only now
            self._processes.remove(process)
            self._grouping.remove(name)  # before all else: others wait for it
            starting.cancel()
            pause_s = self._lives.end(name, code)
            self._leaving.restarted(name)
            self._plans.remove(name)
            was_up = self._workers.pop(name, None) is not None
            if self._all_up():
                self._link.open()
            else:
                self._link.report()
            if was_up:
                self._liveness.pop(name).cancel()
                self._leaving.look()
            if pause_s is None:
                await self._lives.wait_forgiven(name)
            else:
                await asyncio.sleep(pause_s)

    async def _end_if_not_up(self, name: str) -> None:
        await asyncio.sleep(self._times.start_limit_s)
        if name not in self._workers:
            log.error("worker_hangs_as_it_starts", worker=name)
            self._lives.kill(name, f"it was not up after {self._times.start_limit_s:g} s")

    async def _end_if_silent(self, refs: WorkerRefs) -> None:
        name, times, grouping = refs.worker, self._times, self._grouping

        def heard(answer: Message) -> None:
            assert isinstance(answer, WorkerReport)
            if (answer.worker, answer.epoch) == (name, refs.epoch):
                self._note(answer)

        await until_silent(
            self,
            refs.leader,
            lambda: self._plans.plan_of(name),
            every_s=lambda: times.ask_grouped_s if grouping.is_grouped(name) else times.ask_alone_s,
            silent_s=times.silent_s,
            heard=heard,
            suspect=lambda: grouping.lose_sight(name),
        )
        log.error("worker_hangs", worker=refs.worker)
        self._lives.kill(refs.worker, f"it did not answer for {times.silent_s:g} s")

    async def _start_worker(self, name: str, index: int) -> ProcessHandle:
        settings = self._settings
        start = self._starts[name] = f"{self.system.rng.getrandbits(64):016x}"
        guests: dict[str, Role] = {key_of(settings.coordinator): "coordinator"}
        guests |= self._worker_roles() | {key_of(self.ref.address): "node"}
        keys = WorkerKeys(start, self._pairs[name], guests)
        own = {"OMP_NUM_THREADS": "1"}  # until a job says otherwise
        own |= {PARENT: str(settings.pid)}
        own |= self._accelerators.setdefault(name, environment_of(index, os.environ))
        argv = [sys.executable, "-m", "spotlight.actors.worker.process"]
        argv += ["--name", name, "--node", self.ref.address, "--host", settings.host]
        argv += ["--advertise", settings.advertise]
        argv += ["--permissions", msgspec.json.encode(settings.permissions).decode()]
        log_path = settings.log_of(name)
        return await self._launcher.start(
            argv,
            env={**_ENVIRONMENT, **os.environ, **own},
            name=name,
            log_path=log_path,
            secret=keys.encode(),
        )
