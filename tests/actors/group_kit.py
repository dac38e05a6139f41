"""Members in one process that form real groups over gloo, for the tests of SP groups; and ways to
hold a step, to see every step, and to lose a message.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from job_kit import SETTINGS, job, request
from msgspec.structs import replace
from plan_kit import Planner, ReportedTo, reported_to
from runtime_kit import Cluster
from scorer_kit import use_scorer

from spotlight.actors.protocol.down import Grant, GroupPlan, Membership, Seat
from spotlight.actors.protocol.up import Completed, LeaseFailed, ReturnLease
from spotlight.actors.runtime import ActorRef, ActorSystem, Message
from spotlight.actors.worker import torch_engine
from spotlight.actors.worker.member import Member
from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.step_group import SoloSteps
from spotlight.actors.worker.torch_collective import TorchCollective
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import Denoising, sample
from spotlight.timings import Timings
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors.bundles import pack, unpack
from spotlight.types import BundleOffer, Commit, Request
from spotlight_simulation.memory_network import MemoryTransport

STEPS = 6
NOISY = replace(SETTINGS, kind="flow_sde", steps=STEPS, noise_level=0.7, window=(2, 2))
TOLERANCE = 1e-4
"""Largest difference of latents (of size one) between one process and a group."""

Tensors = dict[str, torch.Tensor]


def wanted(*numbers: int, settings: Any = NOISY) -> tuple[Request, ...]:
    """Requests with prompts of their own."""
    return tuple(
        replace(request(n, group=n), prompt=f'the number "{n}{n}"', settings=settings)
        for n in numbers
    )


async def until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    """What threads do takes real time."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass(frozen=True)
class Step:
    """One completed step of one rank."""

    rank: int
    members: int
    seeds: tuple[int, ...]
    step: int
    latents: str
    """A hash of those after it."""


class Steps:
    """Sees every step, and may hold those of rank 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[Step] = []
        self.fails: Callable[[int, Denoising], None] = lambda rank, denoising: None
        """Called before a step of a rank; may raise or wait."""
        self._allowed = 1_000_000
        self._changed = threading.Condition()
        alone, together = SoloSteps.step, TorchCollective.step

        def step_alone(group: SoloSteps, denoising: Denoising) -> None:
            self._before(0, denoising)
            alone(group, denoising)
            self._after(0, 1, denoising)

        def step_together(collective: TorchCollective, denoising: Denoising) -> None:
            rank = collective.rank
            self._before(rank, denoising)
            together(collective, denoising)
            self._after(rank, collective.world, denoising)

        monkeypatch.setattr(SoloSteps, "step", step_alone)
        monkeypatch.setattr(TorchCollective, "step", step_together)

    def hold_after(self, steps: int) -> None:
        """Let rank 0 begin no step once so many were taken in all."""
        with self._changed:
            self._allowed = steps
            self._changed.notify_all()

    def go_on(self) -> None:
        """Hold no step any more."""
        self.hold_after(1_000_000)

    def led(self) -> list[tuple[tuple[int, ...], int, int]]:
        """Seeds, number and degree of the steps of rank 0."""
        return [(s.seeds, s.step, s.members) for s in self.taken if s.rank == 0]

    async def reached(self, steps: int) -> None:
        """Until rank 0 has taken so many."""
        await until(lambda: len(self.led()) >= steps)

    def disagreements(self) -> list[Step]:
        """Steps after which a rank had other latents than another."""
        first: dict[tuple[tuple[int, ...], int], str] = {}
        return [
            s for s in self.taken if first.setdefault((s.seeds, s.step), s.latents) != s.latents
        ]

    def repeated(self) -> list[tuple[tuple[int, ...], int]]:
        """Steps of a batch that were completed more than once."""
        counts = Counter((seeds, step) for seeds, step, _ in self.led())
        return [key for key, count in counts.items() if count > 1]

    def _before(self, rank: int, denoising: Denoising) -> None:
        self.fails(rank, denoising)
        if rank == 0:
            with self._changed:
                assert self._changed.wait_for(lambda: len(self.led()) < self._allowed, 60.0)

    def _after(self, rank: int, members: int, denoising: Denoising) -> None:
        digest = hashlib.sha256(denoising.latents.numpy().tobytes()).hexdigest()
        seeds = denoising.seeds
        with self._changed:
            self.taken.append(Step(rank, members, seeds, denoising.steps_taken, digest))


class Crewman:
    """A worker with a member, and a recorder as its leader."""

    system: ActorSystem
    transport: MemoryTransport
    leader: ReportedTo
    actor: Member
    member: ActorRef
    context: WorkerContext

    def __init__(self, name: str) -> None:
        self.name = name
        self.planner = Planner()

    @property
    def seat(self) -> Seat:
        """Its place in a group."""
        return Seat(self.name, self.leader.ref, self.member)

    def tell(self, message: Message) -> None:
        """To its member, from its leader."""
        self.leader.tell(self.member, message)

    async def ask(self, message: Message) -> Message:
        return await self.leader.ask(self.member, message, timeout_s=60.0)

    def take(self, group: GroupPlan) -> None:
        """The group of its next plan."""
        self.tell(self.planner.group(group))

    async def drain(self, stop_in_s: float) -> None:
        await self.ask(self.planner.drain(stop_in_s))

    async def end_job(self) -> None:
        await self.ask(self.planner.end())

    def failures(self, epoch: int | None = None) -> list[tuple[str, tuple[str, ...]]]:
        return self.leader.failures(epoch)

    def formed(self, epoch: int) -> bool:
        return epoch in self.leader.formed()

    def is_there(self) -> bool:
        """Whether the member has not crashed."""
        return self.member.name in self.system.cells


class GroupCrew:
    """Workers on one network, a store, and the one who plans their groups: the test."""

    def __init__(self, store: BundleStore, models: list[DiffusionModel], weights: Tensors) -> None:
        self.store = store
        self.weights = weights
        self.workers: list[Crewman] = []
        self.epoch = 0
        self.leases = 0
        self.messages: Counter[str] = Counter()
        """Sent between members, by type."""
        self._models = list(models)
        self._offers: dict[tuple[int, float], BundleOffer] = {}
        """Of weights, by version and factor."""
        self._losing: Counter[str] = Counter()
        self._sparing: Counter[str] = Counter()

    async def open(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, timings: Timings
    ) -> None:
        """All workers, with the job and its weights."""
        use_scorer(monkeypatch)
        plain = iter(list(self._models))
        monkeypatch.setattr(torch_engine, "load_model", lambda spec, **_: next(plain))
        for number in range(len(self._models)):
            worker = Crewman(f"w{number}")
            worker.system, worker.transport = await cluster.process(worker.name)
            self._lose_on(worker.transport)
            worker.leader = await reported_to(worker.system)
            worker.context = WorkerContext(worker.name, 1, worker.system.address, timings=timings)
            engine = TorchEngine()
            shared = SharedModel(worker.context, engine)
            worker.actor = Member(worker.context, engine, shared)
            worker.member = await worker.system.spawn(lambda made=worker.actor: made, "member")
            self.workers.append(worker)
            await self.prepare(worker)
            await self.hold(worker)

    def _lose_on(self, transport: MemoryTransport) -> None:
        plain = transport.send

        def send(address: str, frame: bytes) -> None:
            for kind in ("Introduce", "CannotFollow", "Follow"):
                if kind.encode() in frame:
                    self.messages[kind] += 1
                    if self._sparing[kind] > 0:
                        self._sparing[kind] -= 1
                    elif self._losing[kind] > 0:
                        self._losing[kind] -= 1
                        return
                    break
            plain(address, frame)

        transport.send = send  # type: ignore[method-assign]

    def lose(self, kind: str, count: int = 1, *, after: int = 0) -> None:
        """The next messages of this type between members, or those after so many more."""
        self._losing[kind], self._sparing[kind] = count, after

    async def close(self) -> None:
        for worker in self.workers:
            worker.context.close()
        await self.store.aclose()

    async def prepare(self, worker: Crewman, job_id: str = "job", **changes: Any) -> None:
        await worker.ask(worker.planner.prepare(self.membership(worker), job_id, **changes))

    def membership(self, worker: Crewman) -> Membership:
        return Membership(*[worker.leader.ref] * 2, self.store.writable_by(worker.name))

    async def hold(self, worker: Crewman, version: int = 0, factor: float = 1.0) -> None:
        if (version, factor) not in self._offers:
            state = {name: tensor * factor for name, tensor in self.weights.items()}
            offered = self.store.put(f"weights/{version}-{factor}", pack(state))
            self._offers[version, factor] = offered
        plan = worker.planner.hold(version, self._offers[version, factor])
        await worker.ask(plan)
        await until(
            lambda: (
                (worker.leader.report.plan, worker.leader.report.rollout)
                == (plan.number, (version,))
            )
        )

    # --- groups ---

    def order(self, *workers: Crewman, at_once: bool = False, ring: int = 1) -> GroupPlan:
        """A new one, that nobody was told."""
        self.epoch += 1
        return GroupPlan(self.epoch, tuple(w.seat for w in workers), ring, at_once)

    def tell(self, *workers: Crewman, at_once: bool = False, ring: int = 1) -> int:
        """All of them to form a group; returns its epoch."""
        order = self.order(*workers, at_once=at_once, ring=ring)
        for worker in workers:
            worker.take(order)
        return order.epoch

    async def form(self, *workers: Crewman, at_once: bool = False, ring: int = 1) -> int:
        """The same, until the group has formed."""
        epoch = self.tell(*workers, at_once=at_once, ring=ring)
        await until(lambda: all(worker.formed(epoch) for worker in workers))
        return epoch

    async def part(self) -> None:
        """Everyone is alone."""
        epochs = [(worker, self.tell(worker, at_once=True)) for worker in self.workers]
        await until(lambda: all(worker.formed(epoch) for worker, epoch in epochs))
        await until(lambda: group_threads() == 0)

    # --- batches ---

    def denoise(
        self,
        worker: Crewman,
        requests: tuple[Request, ...],
        commits: tuple[Commit | None, ...] = (),
        every: int = 0,
    ) -> int:
        """Give a batch to a worker; returns the lease."""
        self.leases += 1
        commits = commits or (None,) * len(requests)
        worker.tell(Grant(self.leases, requests, commits, every))
        return self.leases

    async def answer(self, worker: Crewman, lease: int) -> Message:
        """How a batch ended."""

        def ends() -> list[Message]:
            said = worker.leader.inbox
            return [
                m
                for m in said
                if isinstance(m, Completed | ReturnLease | LeaseFailed) and m.lease == lease
            ]

        await until(lambda: bool(ends()))
        (end,) = ends()
        return end

    async def samples(self, worker: Crewman, lease: int) -> Tensors:
        """Those of a batch that must have been completed."""
        done = await self.answer(worker, lease)
        assert isinstance(done, Completed), done
        return unpack(await fetch(done.bundle))


def alone(model: DiffusionModel, weights: Tensors, requests: tuple[Request, ...]) -> Tensors:
    """What one process makes of a batch."""
    model.load_trainable_state(weights)
    prompts, seeds = [r.prompt for r in requests], [r.seed for r in requests]
    done = sample(model, prompts, seeds, requests[0].settings)
    assert done.window_states is not None
    assert done.log_probs is not None
    return {
        "latents": done.latents,
        "window_states": done.window_states,
        "log_probs": done.log_probs,
    }


def assert_same(found: Tensors, expected: Tensors) -> None:
    """The same samples within the tolerance."""
    for name, tensor in expected.items():
        difference = (found[name] - tensor).abs().max().item()
        assert difference < TOLERANCE * max(1.0, tensor.abs().max().item()), (name, difference)


def tiny_models(count: int) -> list[DiffusionModel]:
    """One for each worker."""
    return [load_model(job().model) for _ in range(count)]


def trainable(model: DiffusionModel) -> Tensors:
    """Its weights, as they are now."""
    return {name: t.detach().clone() for name, t in model.trainable_state().items()}


def group_threads() -> int:
    """Of gloo, in this process: none once all groups are gone."""
    names = []
    for task in Path("/proc/self/task").glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):
            names.append(task.read_text())
    return sum("gloo" in name for name in names)


@contextmanager
def quiet_process() -> Iterator[None]:
    """So that several members in one process do not fight for the cores, and that groups end with
    their last use rather than when garbage is collected.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        torch.set_num_threads(threads)


async def open_crew(
    cluster: Cluster,
    folder: Path,
    models: list[DiffusionModel],
    weights: Tensors,
    monkeypatch: pytest.MonkeyPatch,
    timings: Timings,
) -> GroupCrew:
    """A crew that is up; close it."""
    store = BundleStore(folder, token="token")
    await store.start()
    crew = GroupCrew(store, models, weights)
    await crew.open(cluster, monkeypatch, timings)
    return crew
