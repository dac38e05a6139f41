"""A trainer rank with fake trainers, a store, and a job runner that only records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from job_kit import Recorder, job, recorder
from msgspec import structs
from plan_kit import Planner
from runtime_kit import Cluster

from spotlight.actors.protocol.down import Membership, WeightsOffer
from spotlight.actors.protocol.trainer import (
    GetTrainer,
    SavedState,
    StartTrainer,
    StateParts,
    Train,
    TrainedIteration,
    TrainerReport,
)
from spotlight.actors.runtime import ActorRef, ActorSystem
from spotlight.actors.worker.engine import Listener, Trainer
from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.threads import WorkerThreads
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.trainer_rank import TrainerRank
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import SliceRefused, TransferFailed
from spotlight.jobs import ModelSpec
from spotlight.transport.tensors import BundleStore
from spotlight.types import BundleOffer, Slice, StoreEndpoint, TrainingSample, UpdateSlices


def built(runner: Recorder) -> list[TrainerReport]:
    """What it was told in answer to `StartTrainer`."""
    return [each for each in reports(runner) if each.completed >= 0 and not answers(each)]


def trained(runner: Recorder) -> list[TrainedIteration]:
    return [each.trained for each in reports(runner) if each.trained is not None]


def published(runner: Recorder) -> list[WeightsOffer]:
    return [each.published for each in reports(runner) if each.published is not None]


def saved(runner: Recorder) -> list[SavedState]:
    return [each.saved for each in reports(runner) if each.saved is not None]


def errors(runner: Recorder) -> list[str]:
    return [each.error for each in reports(runner) if each.error]


def reports(runner: Recorder) -> list[TrainerReport]:
    return runner.all(TrainerReport)


def answers(report: TrainerReport) -> bool:
    """Whether it says what came of an order to a rank that is built."""
    return bool(
        report.trained
        or report.published
        or report.saved is not None
        or report.exported is not None
        or report.error
    )


async def settle() -> None:
    """Let messages to other processes, and their answers, arrive."""
    await asyncio.sleep(0.01)


def take_all(trainer: Trainer, message: Train, bundles: Mapping[str, bytes]) -> Mapping[str, float]:
    """Have a trainer take all optimizer steps of an order, and compute every slice itself."""
    trainer.begin(message, bundles)
    while (share := trainer.update) is not None:
        while trainer.next_slice < len(share.slices):
            trainer.compute(lambda: True)
        trainer.step()
    return trainer.metrics()


class FakeTrainer:
    """Notes what it trains on, and which slices it adds."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, dict[str, bytes]]] = []
        self.error: Exception | None = None
        """What the next update fails with."""
        self.closed = False
        self.slices = 1
        self.updates_of_a_batch = 1
        self.has_reference = self.trains_published = False
        self.micro_batches = 1
        """How many passes a slice takes here."""
        self.while_it_computes: Callable[[int], None] = lambda place: None
        """Called before every pass."""
        self.refuses: set[bytes] = set()
        """Gradients that do not fit."""
        self.added: list[tuple[int, int, bytes]] = []
        """Number of the update, place of the slice, and the gradient; empty if it was computed
        here."""
        self.unfinished: list[int] = []
        """The places of slices that were not wanted any more half-way."""
        self.updates = 0
        self.next_slice = 0
        self._left = 0

    def wants(self, message: Train) -> Sequence[BundleOffer]:
        return sorted({sample.bundle for sample in message.samples}, key=lambda offer: offer.key)

    def begin(self, message: Train, bundles: Mapping[str, bytes]) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append((message.iteration, dict(bundles)))
        self._left, self.next_slice = self.updates_of_a_batch, 0

    @property
    def update(self) -> UpdateSlices | None:
        slices = tuple(Slice(place, (0,), (0,), 0, 1) for place in range(self.slices))
        return UpdateSlices(self.batches[-1][0], 0, 0, 1, 1.0, slices) if self._left else None

    def compute(self, wanted: Callable[[], bool]) -> None:
        for _ in range(self.micro_batches):
            self.while_it_computes(self.next_slice)
            if not wanted():
                self.unfinished.append(self.next_slice)
                return
        self._count(b"")

    def add(self, gradient: bytes) -> None:
        if gradient in self.refuses:
            raise SliceRefused("it is of another model")
        self._count(gradient)

    def step(self) -> None:
        assert self.next_slice == self.slices, "slices are missing"
        self.updates, self._left, self.next_slice = self.updates + 1, self._left - 1, 0

    def metrics(self) -> dict[str, float]:
        return {"loss": 1.0 / (self.batches[-1][0] + 1)}

    def places(self, *, here: bool) -> list[int]:
        """Of the slices that were computed here, or elsewhere."""
        return [place for _, place, gradient in self.added if here is (gradient == b"")]

    def _count(self, gradient: bytes) -> None:
        self.added.append((self.updates, self.next_slice, gradient))
        self.next_slice += 1

    def weights(self, role: str) -> bytes:
        if role in ("current", "reference"):
            return f"{role} {self.updates}".encode()
        return f"{role} {len(self.batches)}".encode()

    def state(self) -> bytes:
        return f"state {len(self.batches)}".encode()

    def close(self) -> None:
        self.closed = True


class FakeModel:
    """Nobody denoises with it."""


class GymEngine(TorchEngine):
    """Builds fake trainers, and leaves bundles in a store without a connection."""

    def __init__(self, store: BundleStore) -> None:
        super().__init__("127.0.0.1")
        self.store = store
        self.trainer = FakeTrainer()
        self.built = 0
        self.rendezvous = ""
        self.uploads_to_fail = 0
        self.begun_from: list[bytes | None] = []
        """The states that trainers were built from."""
        self.saved: list[tuple[StoreEndpoint, str, dict[str, str]]] = []
        self.fetched: list[str] = []
        """Keys of bundles, whether or not they could be had."""
        self.exported: list[BundleOffer] = []
        self.states_asked_of: list[str] = []
        """Machines of the stores that a state was to be had from."""

    def load(self, spec: ModelSpec) -> Any:
        return FakeModel()

    def restore(self, model: Any, spec: ModelSpec) -> None:
        """Nothing was in it."""

    def build_trainer(
        self,
        order: StartTrainer,
        model: Any,
        state: Sequence[bytes],
        rendezvous: str,
        listener: Listener | None,
        require_wanted: Callable[[], None],
    ) -> Any:
        self.built += 1
        self.begun_from.append(*state or [None])
        self.rendezvous = rendezvous
        if listener is not None:
            listener.close()
        return self.trainer

    async def fetch(self, offer: BundleOffer) -> bytes:
        self.fetched.append(offer.key)
        if offer.store.token == "gone":
            raise TransferFailed("the store is away")
        return await super().fetch(offer)

    async def upload(self, endpoint: StoreEndpoint, key: str, data: bytes) -> BundleOffer:
        if self.uploads_to_fail:
            self.uploads_to_fail -= 1
            raise TransferFailed("the store is away")
        return self.store.put(key, data)

    async def save_weights(self, store: StoreEndpoint, key: str, weights: bytes) -> BundleOffer:
        return await self.upload(store, key, weights)

    async def save_state(
        self, store: StoreEndpoint, key: str, state: bytes, metadata: dict[str, str]
    ) -> BundleOffer:
        offer = await self.upload(store, key, state)
        self.saved.append((store, key, metadata))
        return structs.replace(offer, store=structs.replace(offer.store, machine=store.machine))

    async def fetch_state(self, offer: BundleOffer) -> bytes:
        self.states_asked_of.append(offer.store.machine)
        return await self.fetch(offer)

    async def export(
        self, model: ModelSpec, checkpoint: BundleOffer, store: StoreEndpoint
    ) -> tuple[BundleOffer, ...]:
        self.exported.append(checkpoint)
        return (self.store.put("export/weights", b"weights"),)


def start(
    completed: int = 0,
    term: int = 1,
    *,
    rank: int = 0,
    world: int = 1,
    rendezvous: str = "",
    state: StateParts = (),
    ranks: int = 1,
) -> StartTrainer:
    spec = job(training={"ranks": ranks})
    return StartTrainer("job", spec, rank, world, rendezvous, completed, state, term)


class Gym:
    runner: Recorder
    rank: ActorRef
    engine: GymEngine
    leader: Recorder
    planner: Planner
    bundles: list[BundleOffer]
    system: ActorSystem
    store: BundleStore
    context: WorkerContext
    elsewhere: Callable[[str], Awaitable[ActorSystem]]
    """Another process."""

    async def tell(self, message: Any) -> None:
        self.runner.tell(self.rank, message)
        await settle()

    async def prepare(self, runner: Recorder, job_id: str = "job") -> None:
        """The node says whose orders count."""
        membership = Membership(*[runner.ref] * 2, self.store.writable_by("node"))
        self.leader.tell(self.rank, self.planner.prepare(membership, job_id))
        await settle()

    async def replace_trainers(self, term: int) -> None:
        """The node says that ranks of earlier terms are no longer needed."""
        self.leader.tell(self.rank, self.planner.replace_trainers(term))
        await settle()

    async def end(self) -> None:
        """The node says that there is no job any more."""
        self.leader.tell(self.rank, self.planner.end())
        await settle()

    async def start(self, completed: int = 0, term: int = 1, state: StateParts = ()) -> None:
        await self.tell(start(completed, term, state=state))

    def state(self, machine: str = "", token: str = "") -> BundleOffer:
        """One that a store has; with the token `gone`, that it had."""
        offer = self.store.put("state/1", b"a state")
        changes = {"machine": machine or offer.store.machine, "token": token or offer.store.token}
        return structs.replace(offer, store=structs.replace(offer.store, **changes))

    async def completed(self, job_id: str = "job") -> int:
        answer = await self.runner.ask(self.rank, GetTrainer(job_id), timeout_s=1.0)
        assert isinstance(answer, TrainerReport)
        return answer.completed

    def sample(self) -> None:
        """Two bundles."""
        for n in (1.0, 2.0):
            self.bundles.append(self.store.put(f"samples/{n}", b"samples"))

    def batch(self, iteration: int) -> Train:
        a, b = self.bundles[-2:]
        rows = (("p", b, 1, 0.5, 7), ("q", a, 0, -0.5, 8), ("p", b, 0, 0.25, 9))
        return Train(iteration, 0, tuple(TrainingSample(*row) for row in rows))


@asynccontextmanager
async def open_gym(
    folder: Path, threads: Callable[[], WorkerThreads] | None = None
) -> AsyncIterator[Gym]:
    """A rank whose store is in the folder, its node and its job runner."""
    gym = Gym()
    store = BundleStore(folder / "store", token="token")
    await store.start()
    gym.engine = GymEngine(store)
    gym.store, gym.bundles = store, []
    gym.sample()
    async with Cluster() as cluster:
        system = await cluster.system("worker")
        elsewhere = await cluster.system("coordinator")
        gym.runner = await recorder(elsewhere, "runner")
        gym.elsewhere = cluster.system
        gym.system = system
        gym.context = WorkerContext(
            "w",
            1,
            gym.system.address,
            threads=threads() if threads is not None else None,
            fault_of=gym.engine.fault_of,
        )
        gym.leader, gym.planner = await recorder(system, "leader"), Planner()
        shared = SharedModel(gym.context, gym.engine)
        gym.rank = await system.spawn(
            lambda: TrainerRank(gym.context, gym.engine, shared), "trainer-rank"
        )
        await gym.prepare(gym.runner)
        yield gym
    await store.aclose()
