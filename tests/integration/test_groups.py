"""Worker processes that denoise in SP groups, under a real node and a real dispatcher: they are
killed, stopped and resumed, and everything is completed once, as one process would have done it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import torch

from spotlight.actors.coordinator.fleet import Fleet, TenantFleet
from spotlight.actors.coordinator.tenant.dispatcher import Dispatcher
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.request_plans import rollout_settings
from spotlight.actors.coordinator.tenant.request_queue import Ended, RequestQueue
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.down import (
    Demand,
    DemandClass,
    Membership,
    NodePlan,
    NodeRefused,
    WeightsOffer,
)
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.protocol.up import NodeReport, WorkerRefs, WorkerReport
from spotlight.actors.protocol.users import Acknowledged
from spotlight.actors.runtime import Actor, ActorSystem, handles
from spotlight.actors.runtime.fork_launcher import ForkLauncher
from spotlight.actors.runtime.launcher import ProcessHandle
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import sample
from spotlight.jobs import JobSpec, job_from_data
from spotlight.policies.fleet.fleet_events import Heard, Terms
from spotlight.policies.requests.instructions import RequestsFinished
from spotlight.policies.requests.pace import Pace
from spotlight.policies.requests.table import RequestTable
from spotlight.policies.step_times import StepTimes
from spotlight.store.journal import Journal
from spotlight.transport.control import Guests, KeyPair, ZeroMQTransport
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors.bundles import pack, unpack
from spotlight.types import BundleOffer, Request, RequestId, Result, SamplingSettings
from spotlight_simulation.quiet_owner import QuietOwner

WORKERS = 3
TOLERANCE = 1e-3
"""Of latents of size one, after hundreds of steps."""


class _Launcher(ForkLauncher):
    def __init__(self, template: str) -> None:
        super().__init__(template)
        self.processes: dict[str, ProcessHandle] = {}

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        name: str,
        log_path: Path,
        secret: bytes = b"",
    ) -> ProcessHandle:
        self.processes[name] = await super().start(argv, env, name, log_path, secret)
        return self.processes[name]


class _Runner(Actor):
    """As far as workers say what they do."""

    @handles(WorkerReport)
    async def on_report(self, message: WorkerReport) -> None:
        """Of no interest here."""


class _Coordinator(Actor):
    """As far as one node and its requests go."""

    def __init__(
        self, requests: RequestQueue, job: JobSpec, membership: Membership, weights: BundleOffer
    ) -> None:
        self.requests = requests
        self.fleet: Fleet
        self.plans: TenantFleet
        self._job = job
        self._membership = membership
        self._weights = weights
        self._workers: dict[int, WorkerRefs] = {}
        self.finished: Counter[str] = Counter()
        self.results: dict[str, Result] = {}

    async def started(self) -> None:
        self.fleet = Fleet(self, self)
        self.plans = self.fleet.begin("job", Terms())

    def node_reported(self, tenant: str, report: NodeReport) -> None:
        """The job hears of it."""
        self.fleet.handle(Heard("job", report))

    def node_lost(self, tenant: str, name: str, reason: str, *, announced: bool) -> None:
        """It does not happen here."""

    @handles(NodeReport)
    async def on_node_report(self, message: NodeReport) -> NodePlan | NodeRefused | Acknowledged:
        now = {worker.epoch: worker for worker in message.workers}
        gone = tuple(self._workers[epoch].worker for epoch in self._workers.keys() - now.keys())
        came = tuple(now[epoch] for epoch in now.keys() - self._workers.keys())
        self.requests.remove_workers(gone, "it ended")
        self.requests.add_workers(message.node, "spot", came)
        self._workers = now
        if message.coordinator is None:
            self.fleet.reported(message)
            self.plans.prepare(message.node, self._job.work, self._membership)
            self.plans.keep((0,))
            self.plans.hold(message.node, WeightsOffer(0, (self._weights,)))
        return self.fleet.reported(message)

    def note(self, ended: Ended) -> None:
        assert isinstance(ended, RequestsFinished), ended
        for result in ended.results:
            self.finished[result.request.id] += 1
            self.results[result.request.id] = result


class _Site:
    """One node with real worker processes."""

    launcher: _Launcher
    node: NodeScheduler
    system: ActorSystem
    coordinator: _Coordinator
    model: DiffusionModel
    settings: SamplingSettings
    logs: Path

    def __init__(self) -> None:
        self.requests: tuple[Request, ...] = ()

    def submit(self, count: int) -> None:
        """More requests."""
        first = len(self.requests)
        more = tuple(
            Request(str(it), it.kind, 0, 0, f'the number "{it.seed}"', it.seed, 0, self.settings)
            for it in (RequestId("rollout", 0, 0, 0, seed) for seed in range(first, first + count))
        )
        self.requests += more
        self.coordinator.requests.submit(more)

    async def goes_on(self) -> None:
        """Until one batch more is completed."""
        self.submit(12)
        done = self.completed()
        await _until(lambda: self.completed() >= done + 4)

    async def differences(self) -> list[float]:
        """Of the latents of the first and the last batch from those of one process."""
        found: list[float] = []
        for batch in (self.requests[:4], self.requests[-4:]):
            prompts, seeds = [r.prompt for r in batch], [r.seed for r in batch]
            plain = sample(self.model, prompts, seeds, batch[0].settings).latents
            for request, latents in zip(batch, plain, strict=True):
                result = self.coordinator.results[request.id]
                tensors = unpack(await fetch(result.bundle))
                found.append(float((tensors["latents"][result.row] - latents).abs().max()))
        return found

    def said(self, word: str) -> bool:
        """Whether a worker logged this."""
        return any(word in log.read_text() for log in self.logs.glob("*.log"))

    def demand(self, degree: int) -> None:
        """Groups of this degree, as far as there are workers."""
        waiting = DemandClass("rollout", 100, 100, {1: 0.01, 2: 0.006})
        self.coordinator.plans.demand("n", Demand("job", 4, (waiting,), None, degree, ()))
        self.coordinator.plans.send()

    def groups(self) -> list[tuple[str, ...]]:
        """Planned groups of several."""
        return [group for group in self.node._grouping._groups if len(group) > 1]

    def completed(self) -> int:
        return len(self.coordinator.finished)

    def pid(self, worker: str) -> int:
        return self.launcher.processes[worker].pid

    def holdings(self, worker: str) -> tuple[int, int]:
        """Threads of groups, and listening sockets, of a worker process."""
        names = [task.read_text() for task in Path(f"/proc/{self.pid(worker)}/task").glob("*/comm")]
        sockets = psutil.Process(self.pid(worker)).net_connections("tcp")
        listening = sum(socket.status == psutil.CONN_LISTEN for socket in sockets)
        return sum("gloo" in name for name in names), listening


@asynccontextmanager
async def _site(folder: Path, template: str) -> AsyncIterator[_Site]:
    job = job_from_data(
        {
            "name": "small",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": "builtin:ocr-tiny/train",
                "validation": "builtin:ocr-tiny/validation",
                "per_iteration": 1,
            },
            "sampler": {"height": 32, "width": 64, "steps": 60, "micro_batch": 4},
            "iterations": 1,
            "group_size": 4,
        }
    )
    torch.set_num_threads(1)
    model = load_model(job.model)
    site = _Site()
    site.launcher = _Launcher(template)
    site.settings = msgspec.structs.replace(rollout_settings(job, 0), kind="ode", window=None)
    site.model, site.logs = model, folder
    sink_store = BundleStore(folder / "artifacts", token="token")
    node_store = BundleStore(folder / "node", token="token")
    await sink_store.start()
    await node_store.start()
    journal = Journal.open(folder / "journal.records", "test")
    pair, known = KeyPair.new(), Guests({})
    site.system = ActorSystem(
        ZeroMQTransport(keys=pair, guests=known, dialect=own_dialect()),
        rng=random.Random(0),
        rights=MAY_SAY,
    )
    node_pair = KeyPair.new()
    known.admit(node_pair.public, "node")
    node_system = ActorSystem(
        ZeroMQTransport(keys=node_pair, dialect=own_dialect()), rng=random.Random(1), rights=MAY_SAY
    )
    await site.system.start()
    await node_system.start()

    def keys_for(worker: str) -> KeyPair:
        made = KeyPair.new()
        known.admit(made.public, "worker")
        return made

    def fail(error: Exception) -> None:
        raise error

    try:
        dispatcher = Dispatcher(
            QuietOwner(sink_store, lambda ended: site.coordinator.note(ended)),
            RequestTable(pace=Pace(StepProfile("test", StepTimes()))),
            JobJournal(journal, sink_store, fail),
        )
        dispatcher_ref = await site.system.spawn(lambda: dispatcher, "dispatcher")
        runner = await site.system.spawn(_Runner, "runner")
        weights = sink_store.put("weights/0", pack(model.trainable_state()))
        site.coordinator = _Coordinator(
            dispatcher.queue,
            job,
            Membership(runner, dispatcher_ref, sink_store.writable_by("node")),
            weights,
        )
        await site.system.spawn(lambda: site.coordinator, "coordinator")
        node = NodeSettings(
            "n", "spot", WORKERS, "127.0.0.1", site.system.address, folder, os.getpid()
        )
        site.node = NodeScheduler(node, node_store, site.launcher, keys_for)
        await node_system.spawn(lambda: site.node, "node")
        yield site
    finally:
        await node_system.aclose()
        await site.system.aclose()
        await site.launcher.aclose()
        await sink_store.aclose()
        await node_store.aclose()
        journal.close()


async def _until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - things of other processes
            await asyncio.sleep(0.005)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_workers_of_groups_are_killed_and_stopped_and_everything_is_completed_once(
    tmp_path: Path, template: tuple[str, str]
) -> None:
    async with _site(tmp_path, template[1]) as site:
        site.demand(1)
        await _until(lambda: len(site.node._grouping._ready_for) == WORKERS)
        await site.goes_on()
        alone = {name: site.holdings(name) for name in site.launcher.processes}

        # Together.
        site.demand(2)
        await _until(site.groups)
        await site.goes_on()

        # One is stopped: it leaves the group, and when it goes on it may be grouped again.
        ((_, stopped),) = site.groups()
        os.kill(site.pid(stopped), signal.SIGSTOP)
        await _until(lambda: stopped in site.node._grouping._silent)
        assert stopped not in site.groups()[0]
        await site.goes_on()
        os.kill(site.pid(stopped), signal.SIGCONT)
        await _until(lambda: not site.node._grouping._silent)

        # A follower is killed: the other two form a group at once.
        ((_, follower),) = site.groups()
        os.kill(site.pid(follower), signal.SIGKILL)
        await _until(lambda: follower not in site.node._workers)
        assert follower not in site.groups()[0]
        await site.goes_on()

        # The one that leads is killed.
        ((first, last),) = site.groups()
        os.kill(site.pid(first), signal.SIGKILL)
        await _until(lambda: first not in site.node._workers)
        await site.goes_on()
        await _until(lambda: site.completed() == len(site.requests))

        assert set(site.coordinator.finished.values()) == {1}
        assert max(await site.differences()) < TOLERANCE

        # The one that lived on holds no more than before.
        site.demand(1)
        await _until(lambda: site.holdings(last) == alone[last])
        assert not site.said("never retrieved")
        assert not site.said("actor_crashed")
