"""Real nodes and worker processes under a real dispatcher, for `benchmarks.preemption` and
`benchmarks.regroup`: who can be killed and given notice, and what is seen of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.noted_table import NotedPace, NotedTable
from benchmarks.traced_worker import TRACE_VARIABLE
from spotlight.actors.coordinator.fleet import Fleet, TenantFleet
from spotlight.actors.coordinator.tenant.dispatcher import Dispatcher
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.request_queue import Ended, RequestQueue
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol.artifacts import picture_key
from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.down import Membership, NodePlan, NodeRefused, WeightsOffer
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.protocol.up import NodeReport, WorkerRefs, WorkerReport
from spotlight.actors.protocol.users import Acknowledged
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, handles
from spotlight.actors.runtime.fork_launcher import ForkLauncher
from spotlight.actors.runtime.launcher import ProcessHandle
from spotlight.diffusion.model import DiffusionModel
from spotlight.jobs import JobSpec
from spotlight.policies.fleet.fleet_events import Heard, Terms
from spotlight.policies.requests.instructions import RequestsFinished
from spotlight.policies.requests.rows import Lease
from spotlight.policies.step_times import StepTimes
from spotlight.running.worker_template import worker_template
from spotlight.store.journal import NAME, Journal
from spotlight.transport.control import KeyPair, ZeroMQTransport, key_of
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors.bundles import pack, unpack
from spotlight.types import BundleOffer, Request, RequestId, Result, SamplingSettings
from spotlight_simulation.quiet_owner import QuietOwner

LIMIT_S = 300.0
EXAMPLE = Path(__file__).parent.parent / "examples" / "ocr-tiny.yaml"
"""The job whose model is denoised with."""


def make_requests(settings: SamplingSettings, round_number: int, count: int) -> tuple[Request, ...]:
    """So many requests; those of another round differ in nothing but their ids."""
    return tuple(
        Request(
            id=str(RequestId("rollout", round_number, 0, 0, seed)),
            kind="rollout",
            iteration=round_number,
            group=0,
            prompt=f'the number "{seed * 617 % 10000:04d}"',
            seed=seed,
            weights_version=0,
            settings=settings,
        )
        for seed in range(count)
    )


class _TracedLauncher(ForkLauncher):
    """Starts workers that write down their steps."""

    def __init__(self, template: str, trace: Path) -> None:
        super().__init__(template)
        self._trace = trace
        self.processes: dict[str, ProcessHandle] = {}

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        name: str,
        log_path: Path,
        secret: bytes = b"",
    ) -> ProcessHandle:
        """See `ForkLauncher.start`."""
        assert argv[1:3] == ["-m", "spotlight.actors.worker.process"]
        traced = [sys.executable, "-m", "benchmarks.traced_worker", *argv[3:]]
        environment = {**env, TRACE_VARIABLE: str(self._trace)}
        self.processes[name] = await super().start(traced, environment, name, log_path, secret)
        return self.processes[name]


def _system(name: str) -> ActorSystem:
    transport = ZeroMQTransport(dialect=own_dialect())
    return ActorSystem(transport, rng=random.Random(name), rights=MAY_SAY)


def keys_for(worker: str) -> KeyPair:
    """The pair of a worker."""
    return KeyPair.new()


class _Coordinator(Actor):
    """The coordinator as far as nodes and requests go."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._workers: dict[str, dict[int, WorkerRefs]] = {}
        self.fleet: Fleet
        self.plans: TenantFleet

    async def started(self) -> None:
        """The job begins."""
        self.fleet = Fleet(self, self)
        self.plans = self.fleet.begin("job", Terms())

    def node_reported(self, tenant: str, report: NodeReport) -> None:
        """The job hears of it."""
        self.fleet.handle(Heard("job", report))

    def node_lost(self, tenant: str, name: str, reason: str, *, announced: bool) -> None:
        """What they had is told with their last report."""

    @handles(NodeReport)
    async def on_node_report(self, message: NodeReport) -> NodePlan | NodeRefused | Acknowledged:
        name, site = message.node, self._site
        for worker in message.workers:
            self.system.guests.admit(key_of(worker.leader.address), "worker")
        before = self._workers.get(name, {})
        after = {} if message.left else {worker.epoch: worker for worker in message.workers}
        self._workers[name] = after
        gone = [before[epoch] for epoch in before.keys() - after.keys()]
        self._remove(gone, announced=message.left)
        site.requests.add_workers(
            name, "spot", tuple(after[epoch] for epoch in after.keys() - before.keys())
        )
        names = tuple(worker.worker for worker in after.values())
        site.requests.set_leaving(names, leaving=message.notice is not None)
        if message.left:
            site.left.add(name)
        if not before:
            self.fleet.reported(message)
            self.plans.prepare(name, site.job.work, site.membership)
            self.plans.keep((0,))
            self.plans.hold(name, WeightsOffer(0, (site.weights,)))
        if before.keys() != after.keys():
            site.joined(name)
        return self.fleet.reported(message)

    @handles(WorkerReport)
    async def on_worker_report(self, message: WorkerReport) -> None:
        """Of no interest here."""

    def workers(self, node: str) -> tuple[WorkerRefs, ...]:
        """Those of a node, as it reported last."""
        return tuple(self._workers.get(node, {}).values())

    def _remove(self, workers: list[WorkerRefs], *, announced: bool) -> None:
        names = tuple(worker.worker for worker in workers)
        self._site.requests.remove_workers(names, "its process ended", announced=announced)


class Site:
    """Nodes of `workers` each; opened by `opened`."""

    requests: RequestQueue
    job: JobSpec
    membership: Membership
    weights: BundleOffer
    launcher: _TracedLauncher

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self.folder = folder
        self._workers = workers
        self.trace = folder / "steps.jsonl"
        self.trace.touch()
        self.pace = NotedPace(StepProfile("benchmark", StepTimes()))
        self.table = NotedTable(pace=self.pace)
        self.nodes: dict[str, ActorRef] = {}
        self.systems: list[ActorSystem] = []
        self.stores: list[BundleStore] = []
        self.coordinator = _Coordinator(self)
        self.left: set[str] = set()
        self.finished: Counter[str] = Counter()
        self.results: dict[str, Result] = {}
        self.given_up: list[str] = []

    async def open(self, job: JobSpec, model: DiffusionModel, nodes: int, template: str) -> None:
        """Start everything, with workers that are forked from this template, and wait until it is
        `up`."""
        self.launcher = _TracedLauncher(template, self.trace)
        self.store = BundleStore(self.folder / "artifacts", token="benchmark", durable=True)
        await self.store.start()
        self._journal = Journal.open(self.folder / NAME, "benchmark")
        self.system = _system("coordinator")
        await self.system.start()
        dispatcher = Dispatcher(
            QuietOwner(self.store, self._note),
            self.table,
            JobJournal(self._journal, self.store, _fail),
        )
        dispatcher_ref = await self.system.spawn(lambda: dispatcher, "dispatcher")
        self.requests = dispatcher.queue
        coordinator = await self.system.spawn(lambda: self.coordinator, "coordinator")
        self.weights = self.store.put("weights/0", pack(model.trainable_state()))
        sink = self.store.writable_by("site")
        self.job, self.membership = job, Membership(coordinator, dispatcher_ref, sink)
        for number in range(nodes):
            await self._add_node(f"node-{number}")
        await self.until(self.up)

    def up(self) -> bool:
        """Whether every worker pulls."""
        return len(self.table.able) == self._workers * len(self.nodes)

    def joined(self, name: str) -> None:
        """A node has joined, or its workers have changed."""

    async def _add_node(self, name: str) -> None:
        store = BundleStore(self.folder / name, token=name)
        await store.start()
        system = _system(name)
        await system.start()
        self.system.guests.admit(key_of(system.address), "node")
        settings = NodeSettings(
            name=name,
            pool="spot",
            workers=self._workers,
            host="127.0.0.1",
            coordinator=self.system.address,
            logs=self.folder / "logs",
            pid=os.getpid(),
        )
        self.nodes[name] = await system.spawn(lambda: self.make_node(settings, store), "node")
        self.systems.append(system)
        self.stores.append(store)

    def make_node(self, settings: NodeSettings, store: BundleStore) -> NodeScheduler:
        """The scheduler of a node."""
        return NodeScheduler(settings, store, self.launcher, keys_for)

    async def close(self) -> None:
        """End all processes."""
        for system in (*self.systems, self.system):
            await system.aclose()
        await self.launcher.aclose()
        for store in (*self.stores, self.store):
            await store.aclose()
        self._journal.close()

    def denoising(self) -> dict[str, list[Lease]]:
        """Leases by holder, without those whose images only wait for their rewards."""
        held: dict[str, list[Lease]] = {}
        for lease in self.table.leases():
            if not lease.is_denoised:
                held.setdefault(lease.worker, []).append(lease)
        return held

    def submit(self, requests: tuple[Request, ...]) -> None:
        """Have them denoised and scored."""
        self.requests.submit(requests)

    def _note(self, ended: Ended) -> None:
        if isinstance(ended, RequestsFinished):
            for result in ended.results:
                self.finished[result.request.id] += 1
                self.results[result.request.id] = result
        else:
            self.given_up += [request.id for request in ended.requests]

    def kill(self, worker: str) -> None:
        """SIGKILL, without notice."""
        self.launcher.processes[worker].kill()

    def notice(self, node: str, seconds: float, *, cancel: bool = False) -> None:
        """As a user would."""
        self.coordinator.fleet.give_notice(node, seconds, cancel=cancel)

    def traced_since(self, offset: int) -> list[dict[str, Any]]:
        """The lines that were written after the trace had so many bytes."""
        with self.trace.open("rb") as file:
            file.seek(offset)
            return [json.loads(line) for line in file]

    async def fingerprints(self, requests: tuple[Request, ...]) -> dict[int, str]:
        """A hash of all tensors of each finished sample, and of its image where that was asked for,
        by seed; both are dropped.
        """
        found: dict[int, str] = {}
        bundles: dict[str, BundleOffer] = {}
        for request in requests:
            result = self.results.get(request.id)
            if result is None:
                continue
            bundles[result.bundle.key] = result.bundle
            tensors = unpack(await fetch(result.bundle))
            digest = hashlib.sha256()
            for name in sorted(tensors.keys() - {"step"}):
                digest.update(name.encode() + tensors[name][result.row].numpy().tobytes())
            if picture := picture_key(result):
                digest.update((self.folder / "artifacts" / picture).read_bytes())
                self.store.delete(picture)
            found[request.seed] = digest.hexdigest()
        for bundle in bundles.values():
            self.store.delete(bundle.key)
        return found

    async def until(self, condition: Any, limit_s: float = LIMIT_S) -> float:
        """Wait until it holds; returns the time on the loop's clock."""
        async with asyncio.timeout(limit_s):
            while not condition():  # noqa: ASYNC110 - things of other actors
                await asyncio.sleep(0.001)
        return asyncio.get_running_loop().time()


SiteT = TypeVar("SiteT", bound=Site)


@asynccontextmanager
async def opened(
    site: SiteT, job: JobSpec, model: DiffusionModel, nodes: int
) -> AsyncIterator[SiteT]:
    """The site, up; closed at the end."""
    async with worker_template(site.folder / "logs") as template:
        try:
            await site.open(job, model, nodes, template)
            yield site
        finally:
            await site.close()


def _fail(error: Exception) -> None:
    raise error
