"""Two workers with real members in one process, whose leaders only record; and ways to hold the
steps that they take and the uploads that they make.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from job_kit import SETTINGS, job, request
from msgspec.structs import replace
from plan_kit import Planner, ReportedTo, reported_to
from runtime_kit import Cluster

from spotlight.actors.protocol.down import Grant, Keeper, Membership
from spotlight.actors.protocol.up import CommitSteps, Completed, LeaseFailed, ReturnLease
from spotlight.actors.runtime import ActorRef, ActorSystem, Message
from spotlight.actors.worker import torch_engine
from spotlight.actors.worker.member import Member
from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.torch_model import TorchModel
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import Denoising
from spotlight.errors import TransferFailed
from spotlight.jobs import ModelSpec
from spotlight.timings import DeliveryTimings, Timings, TransferTimings
from spotlight.transport.tensors import BundleStore, fetch, upload
from spotlight.transport.tensors.bundles import pack, unpack
from spotlight.types import BundleOffer, Commit, Request, StoreEndpoint

STEPS = 5
NOISY = replace(SETTINGS, kind="flow_sde", steps=STEPS, noise_level=0.7, window=(1, 2))
PLAIN = replace(SETTINGS, steps=STEPS)

Tensors = dict[str, torch.Tensor]


def wanted(*numbers: int, settings: Any = NOISY, **changes: Any) -> tuple[Request, ...]:
    """Requests with prompts of their own."""
    return tuple(
        replace(request(n, group=n), prompt=f'the number "{n}{n}"', settings=settings, **changes)
        for n in numbers
    )


async def until(condition: Callable[[], bool]) -> None:
    """What threads do takes real time."""
    async with asyncio.timeout(60.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class ReadyEngine(TorchEngine):
    """Gives out a model that is loaded already: members leave it as it was, but for its weights,
    which they set before they denoise."""

    def __init__(self, ready: DiffusionModel) -> None:
        super().__init__()
        self._ready = ready

    def load(self, spec: ModelSpec) -> TorchModel:
        assert spec == job().model
        return TorchModel(self._ready)


@cache
def ready_models() -> tuple[DiffusionModel, DiffusionModel]:
    """The tiny model twice, for all tests of a process."""
    return load_model(job().model), load_model(job().model)


class Worker:
    """A member in a process of its own, with a recorder as its leader."""

    system: ActorSystem
    leader: ReportedTo
    member: ActorRef
    context: WorkerContext
    shared: SharedModel

    def __init__(self, store: BundleStore, engine: TorchEngine) -> None:
        self.store = store
        self.engine = engine
        self.leases = 0
        self.planner = Planner()

    async def open(self, cluster: Cluster, name: str, weights: Tensors, timings: Timings) -> None:
        self.system = await cluster.system(name)
        self.leader = await reported_to(self.system)
        engine = self.engine
        self.context = WorkerContext(
            name, 1, self.system.address, timings=timings, fault_of=engine.fault_of
        )
        shared = self.shared = SharedModel(self.context, engine)
        self.member = await self.system.spawn(
            lambda: Member(self.context, engine, shared), "member"
        )
        await self.prepare(self.store)
        await self.hold(weights)

    async def prepare(
        self, sink: BundleStore, job_id: str = "job", keeper: Keeper | None = None, **changes: Any
    ) -> None:
        membership = Membership(*[self.leader.ref] * 2, sink.writable_by("node"), keeper)
        await self.ask(self.planner.prepare(membership, job_id, **changes))

    async def hold(self, weights: Tensors) -> None:
        plan = self.planner.hold(0, self.store.put("weights/0", pack(weights)))
        await self.ask(plan)
        await until(
            lambda: (self.leader.report.plan, self.leader.report.rollout) == (plan.number, (0,))
        )

    async def drain(self, stop_in_s: float | None) -> None:
        await self.ask(self.planner.drain(stop_in_s))

    async def end_job(self) -> None:
        await self.ask(self.planner.end())

    async def ask(self, message: Message) -> Message:
        return await self.leader.ask(self.member, message, timeout_s=60.0)

    def tell(self, message: Message) -> None:
        self.leader.tell(self.member, message)

    def denoise(
        self, requests: tuple[Request, ...], commits: tuple[Commit | None, ...] = (), every: int = 0
    ) -> None:
        self.leases += 1
        self.tell(Grant(self.leases, requests, commits or (None,) * len(requests), every))

    async def hears(self, count: int) -> list[Message]:
        """The leader's inbox once it has so many messages."""
        await until(lambda: len(self.leader.inbox) >= count)
        return self.leader.inbox

    async def done(self) -> Tensors:
        """The samples of the batch that runs."""
        inbox = self.leader.inbox
        await until(lambda: bool(inbox) and isinstance(inbox[-1], Completed | LeaseFailed))
        last = inbox[-1]
        assert isinstance(last, Completed), last
        return unpack(await fetch(last.bundle))

    def committed(self, step: int) -> BundleOffer:
        (found,) = [m.bundle for m in self.leader.all(CommitSteps) if m.step == step]
        return found

    def returned(self, lease: int) -> ReturnLease:
        return ReturnLease(self.context.name, 1, lease)


class Gate:
    """Lets denoising take one step for every permit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._permits = threading.Semaphore(0)
        self.begun = 0
        take_step = Denoising.step

        def step(denoising: Denoising) -> None:
            self.begun += 1
            assert self._permits.acquire(timeout=60.0)
            take_step(denoising)

        monkeypatch.setattr(Denoising, "step", step)

    def open(self, steps: int = 1000) -> None:
        self._permits.release(steps)

    async def run(self, worker: Worker, requests: tuple[Request, ...], step: int) -> Tensors:
        """Samples, and a commit after `step`, for whose delivery the next step waits."""
        before = self.begun
        worker.denoise(requests, every=step)
        self.open(step)
        await self.reached(before + step + 1)
        await until(lambda: step in steps_of(worker))
        self.open(STEPS - step)
        return await worker.done()

    async def reached(self, step: int) -> None:
        """Until so many steps have begun, in all."""
        await until(lambda: self.begun >= step)


def rows(tensors: Tensors, *indices: int) -> Tensors:
    return {name: tensor[list(indices)] for name, tensor in tensors.items() if tensor.dim()}


def assert_same_bits(left: Tensors, right: Tensors) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


PERSISTENT = Timings(delivery=DeliveryTimings(retry_pause_s=0.005))
"""Workers that soon try again."""


class SlowSink:
    """Uploads wait until they may go on; they may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.fails = False
        self.keys: list[str] = []
        monkeypatch.setattr(torch_engine, "upload", self)

    async def __call__(
        self, store: StoreEndpoint, key: str, data: bytes, timings: TransferTimings
    ) -> BundleOffer:
        self.keys.append(key)
        await self.free.wait()
        if self.fails:
            raise TransferFailed("nobody is there")
        return await upload(store, key, data, timings)


def steps_of(worker: Worker) -> list[int]:
    return [message.step for message in worker.leader.all(CommitSteps)]


def tiny_weights() -> Tensors:
    """Those of the tiny model."""
    state = load_model(job().model).trainable_state()
    return {name: tensor.detach().clone() for name, tensor in state.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """So that bits do not depend on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@asynccontextmanager
async def two_workers(
    weights: Tensors, folder: Path, timings: Timings = PERSISTENT
) -> AsyncIterator[tuple[Worker, Worker]]:
    """With one store."""
    async with Cluster() as cluster:
        store = BundleStore(folder, token="token")
        await store.start()
        first, second = ready_models()
        pair = Worker(store, ReadyEngine(first)), Worker(store, ReadyEngine(second))
        for index, worker in enumerate(pair):
            await worker.open(cluster, f"w{index}", weights, timings)
        yield pair
        await store.aclose()
        for worker in pair:
            worker.context.close()
