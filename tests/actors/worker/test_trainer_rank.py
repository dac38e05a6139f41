"""A trainer rank: it trains once per iteration, and every error becomes a message."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from job_kit import Recorder, job, recorder
from msgspec import structs
from plan_kit import Planner
from runtime_kit import Cluster

from spotlight.actors.protocol import (
    ExportedModel,
    ExportModel,
    GetTrainer,
    Membership,
    Publish,
    SavedState,
    SaveState,
    StartTrainer,
    StateParts,
    Train,
    TrainedIteration,
    TrainerReport,
    TrainingSample,
    WeightsOffer,
)
from spotlight.actors.runtime import ActorRef, ActorSystem
from spotlight.actors.worker.engine import Listener
from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.trainer_rank import TrainerRank
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import TrainingDiverged, TransferFailed, TransportError
from spotlight.jobs import ModelSpec
from spotlight.transport.tensors import BundleStore
from spotlight.types import BundleOffer, StoreEndpoint

pytestmark = pytest.mark.virtual_time


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


class FakeTrainer:
    """Notes what it trains on."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, dict[str, bytes]]] = []
        self.error: Exception | None = None
        self.closed = False

    def wants(self, message: Train) -> Sequence[BundleOffer]:
        return sorted({sample.bundle for sample in message.samples}, key=lambda offer: offer.key)

    def train(self, message: Train, bundles: Mapping[str, bytes]) -> dict[str, float]:
        if self.error is not None:
            raise self.error
        self.batches.append((message.iteration, dict(bundles)))
        return {"loss": 1.0 / (message.iteration + 1)}

    def weights(self, role: str) -> bytes:
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
) -> StartTrainer:
    return StartTrainer("job", job(), rank, world, rendezvous, completed, state, term)


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
        rows = (("p", b, 1, 0.5), ("q", a, 0, -0.5), ("p", b, 0, 0.25))
        return Train(iteration, 0, tuple(TrainingSample(*row) for row in rows))


@pytest.fixture
async def gym(tmp_path: Path) -> AsyncIterator[Gym]:
    gym = Gym()
    store = BundleStore(tmp_path / "store", token="token")
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
        fault_of = gym.engine.fault_of
        gym.context = WorkerContext("w", 1, gym.system.address, fault_of=fault_of)
        gym.leader, gym.planner = await recorder(system, "leader"), Planner()
        shared = SharedModel(gym.context, gym.engine)
        gym.rank = await system.spawn(
            lambda: TrainerRank(gym.context, gym.engine, shared), "trainer-rank"
        )
        await gym.prepare(gym.runner)
        yield gym
    await store.aclose()


async def test_it_says_when_it_is_built(gym: Gym) -> None:
    await gym.start()
    assert gym.runner.inbox == [TrainerReport(1, 0, 0)]


async def test_the_same_term_builds_once_and_another_one_again(gym: Gym) -> None:
    async with gym.context.accelerator_turn():
        await gym.start()
        await gym.start()
    await settle()
    await gym.tell(gym.batch(0))
    await gym.start()
    assert built(gym.runner) == [TrainerReport(1, 0, 0)] * 2
    assert (gym.engine.built, await gym.completed()) == (1, 1)
    await gym.start(term=2)
    assert (gym.engine.built, await gym.completed()) == (2, 0)


async def test_what_was_ordered_of_ranks_that_were_given_up_is_not_done(gym: Gym) -> None:
    await gym.start()
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        await gym.start(term=2)
    await settle()
    assert trained(gym.runner) == []
    assert gym.engine.trainer.batches == [], "it would take the time of those that came after"
    assert await gym.completed() == 0


async def test_another_job_in_the_plan_frees_the_trainer(gym: Gym) -> None:
    await gym.start()
    await gym.prepare(gym.runner)
    assert await gym.completed() == 0, "it is of the job in the plan"
    await gym.prepare(gym.runner, "another")
    assert await gym.completed() == -1


async def test_samples_are_fetched_from_where_the_coordinator_that_came_back_has_them(
    gym: Gym,
) -> None:
    order = gym.batch(0)
    away = [
        structs.replace(
            sample,
            bundle=structs.replace(
                sample.bundle, store=structs.replace(sample.bundle.store, token="gone")
            ),
        )
        for sample in order.samples
    ]
    await gym.start()
    await gym.tell(structs.replace(order, samples=tuple(away)))
    assert await gym.completed() == 0
    await gym.tell(order)
    await asyncio.sleep(2.0)
    assert await gym.completed() == 1
    assert len(trained(gym.runner)) == 1


async def test_it_trains_on_the_bundles_that_its_trainer_wants(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    ((iteration, bundles),) = gym.engine.trainer.batches
    assert iteration == 0
    assert bundles == {"samples/1.0": b"samples", "samples/2.0": b"samples"}
    assert trained(gym.runner)[-1].metrics == {"loss": 1.0}


async def test_a_repeated_train_is_answered_from_memory(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    await gym.tell(gym.batch(0))
    first, second = (each for each in reports(gym.runner) if each.trained is not None)
    assert first == second
    assert len(gym.engine.trainer.batches) == 1
    await gym.tell(gym.batch(1))
    assert len(gym.engine.trainer.batches) == 2


async def test_a_train_that_is_repeated_while_it_runs_is_answered_once_to_the_latest_asker(
    gym: Gym,
) -> None:
    await gym.start()
    successor = await recorder(gym.system, "successor")
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        await gym.prepare(successor)
        successor.tell(gym.rank, gym.batch(0))
        await settle()
        assert await gym.completed() == 0
    await settle()
    assert len(gym.engine.trainer.batches) == 1
    (report,) = successor.inbox
    assert (report.term, report.rank, report.completed) == (1, 0, 1)
    assert report.trained == TrainedIteration(0, {"loss": 1.0}, report.trained.seconds)
    assert trained(gym.runner) == []


async def test_an_error_goes_to_the_latest_asker_too_and_the_iteration_may_be_tried_again(
    gym: Gym,
) -> None:
    await gym.start()
    successor = await recorder(gym.system, "successor")
    gym.engine.trainer.error = TrainingDiverged("the loss is nan")
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        await gym.prepare(successor)
        successor.tell(gym.rank, gym.batch(0))
        await settle()
    await settle()
    assert len(errors(successor)) == 1
    gym.engine.trainer.error = None
    successor.tell(gym.rank, gym.batch(0))
    await settle()
    assert trained(successor)[-1].iteration == 0


async def test_it_says_how_many_iterations_are_trained(gym: Gym) -> None:
    assert await gym.completed() == -1
    await gym.start(completed=3)
    assert await gym.completed() == 3
    await gym.tell(gym.batch(3))
    await gym.tell(gym.batch(3))
    assert await gym.completed() == 4
    assert await gym.completed("another") == -1


@pytest.mark.parametrize("iteration", [2, 4])
async def test_an_iteration_out_of_turn_is_refused(gym: Gym, iteration: int) -> None:
    await gym.start(completed=3)
    await gym.tell(gym.batch(iteration))
    assert gym.engine.trainer.batches == []
    assert "3 are trained" in errors(gym.runner)[-1]
    assert await gym.completed() == 3


async def test_weights_are_published_to_whoever_asks_as_often_as_they_ask(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    successor = await recorder(gym.system, "successor")
    publish = Publish(1, False, gym.store.writable_by("node"))
    await gym.tell(publish)
    await gym.tell(publish)
    await gym.prepare(successor)
    for order in (publish, gym.batch(1), publish):  # the last is a reminder that was on its way
        successor.tell(gym.rank, order)
        await settle()
    assert len(published(gym.runner)) == len(published(successor)) == 2
    assert len({*published(gym.runner), *published(successor)}) == 1
    assert errors(successor) == []


async def test_weights_of_another_version_than_asked_for_are_never_published(gym: Gym) -> None:
    await gym.start()
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        await gym.tell(
            Publish(0, False, gym.store.writable_by("node"))
        )  # queued behind the training
    await settle()
    assert published(gym.runner) == []
    assert "asked to publish iteration 0, but 1 are trained" in errors(gym.runner)[-1]


async def test_the_state_is_left_in_every_store_of_the_order(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    stores = tuple(structs.replace(gym.store.endpoint, machine=name) for name in ("here", "there"))
    await gym.tell(SaveState(1, stores))
    metadata = {"job": "job", "completed": "1"}
    assert gym.engine.saved == [(each, "state/1-0", metadata) for each in stores]
    (answer,) = saved(gym.runner)
    assert answer.iteration == 1
    assert [offer.store.machine for offer in answer.offers] == ["here", "there"]
    assert await gym.engine.fetch(answer.offers[0]) == b"state 1"


async def test_the_state_is_left_once_however_often_it_is_asked_for(gym: Gym) -> None:
    await gym.start()
    order = SaveState(0, (gym.store.writable_by("node"),))
    await gym.tell(order)
    await gym.tell(order)
    assert len(gym.engine.saved) == 1
    first, second = saved(gym.runner)
    assert first == second


async def test_a_coordinator_that_came_back_is_left_the_state_where_its_store_is_now(
    gym: Gym,
) -> None:
    await gym.start()
    await gym.tell(SaveState(0, (gym.store.writable_by("node"),)))
    await gym.tell(SaveState(0, (gym.store.writable_by("node again"),)))
    assert len(gym.engine.saved) == len(saved(gym.runner)) == 2


async def test_only_the_state_of_what_is_trained_is_saved(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    await gym.tell(SaveState(2, (gym.store.writable_by("node"),)))
    assert (gym.engine.saved, saved(gym.runner)) == ([], [])
    assert "asked to save iteration 2, but 1 are trained" in errors(gym.runner)[-1]


async def test_the_state_is_left_when_the_store_is_back(gym: Gym) -> None:
    """As it was when it was asked for, though training may have gone on since."""
    await gym.start()
    gym.engine.uploads_to_fail = 2
    await gym.tell(SaveState(0, (gym.store.writable_by("node"),)))
    await gym.tell(gym.batch(0))
    await asyncio.sleep(10.0)
    (answer,) = saved(gym.runner)
    assert await gym.engine.fetch(answer.offers[0]) == b"state 0"
    assert errors(gym.runner) == []


async def test_it_begins_from_a_state_that_a_store_has(gym: Gym) -> None:
    await gym.start(3, state=((gym.state(),),))
    assert gym.engine.begun_from == [b"a state"]
    assert await gym.completed() == 3


async def test_it_begins_with_the_jobs_model_where_there_is_no_state(gym: Gym) -> None:
    await gym.start()
    assert gym.engine.begun_from == [None]


async def test_the_state_is_had_from_the_next_one_when_the_first_has_none(gym: Gym) -> None:
    holders = gym.state("first", token="gone"), gym.state("second"), gym.state("third")
    await gym.start(3, state=(holders,))
    assert gym.engine.begun_from == [b"a state"]
    assert gym.engine.states_asked_of == ["first", "second"]
    assert errors(gym.runner) == []


async def test_the_state_is_asked_for_again_for_a_while(gym: Gym) -> None:
    away = gym.state(token="gone")
    await gym.start(3, state=((away,),))
    await asyncio.sleep(5.0)
    assert len(gym.engine.states_asked_of) > 1
    assert (gym.engine.built, errors(gym.runner)) == (0, [])


async def test_a_state_that_nobody_has_is_reported_as_lost(gym: Gym) -> None:
    await gym.start(3, state=((gym.state("a", token="gone"), gym.state("b", token="gone")),))
    await asyncio.sleep(2 * gym.context.timings.delivery.away_limit_s)
    report = gym.runner.last(TrainerReport)
    assert "TransferFailed" in report.error
    assert (report.lost_state, report.lost_others, report.completed) == (True, True, -1)
    assert gym.engine.built == 0


async def test_samples_that_nobody_has_are_no_lost_state(gym: Gym) -> None:
    await gym.start()
    order = gym.batch(0)
    gone = gym.state(token="gone")
    samples = tuple(structs.replace(sample, bundle=gone) for sample in order.samples)
    await gym.tell(structs.replace(order, samples=samples))
    await asyncio.sleep(2 * gym.context.timings.delivery.away_limit_s)
    report = gym.runner.last(TrainerReport)
    assert (report.lost_others, report.lost_state) == (True, False)


async def test_one_that_is_given_up_while_it_fetches_asks_for_nothing_more(gym: Gym) -> None:
    await gym.start(3, state=((gym.state("old", token="gone"),),))
    await gym.start(3, term=2, state=((gym.state("new"),),))
    asked = gym.engine.states_asked_of.copy()
    await asyncio.sleep(2 * gym.context.timings.delivery.away_limit_s)
    assert gym.engine.states_asked_of == asked, "only the new one's"
    assert (gym.engine.built, errors(gym.runner)) == (1, [])
    assert built(gym.runner) == [TrainerReport(2, 0, 3)]


async def test_the_weights_of_a_checkpoint_are_exported_when_asked_for(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    checkpoint = gym.state()
    await gym.tell(ExportModel(1, 0, checkpoint, gym.store.writable_by("node")))
    assert gym.engine.exported == [checkpoint]
    exported = gym.runner.last(TrainerReport).exported
    assert exported == ExportedModel(0, (gym.store.put("export/weights", b"weights"),))


async def test_an_error_of_the_trainer_becomes_a_message(gym: Gym) -> None:
    await gym.start()
    gym.engine.trainer.error = TrainingDiverged("the loss is nan")
    await gym.tell(gym.batch(0))
    error = "TrainingDiverged: the loss is nan"
    assert gym.runner.last(TrainerReport) == TrainerReport(1, 0, 0, error=error)
    assert trained(gym.runner) == []


async def test_work_for_a_job_that_has_ended_is_ignored(gym: Gym) -> None:
    await gym.start()
    await gym.end()
    await gym.tell(gym.batch(0))
    assert gym.engine.trainer.batches == []
    await gym.prepare(gym.runner)
    await gym.start(term=2)
    assert len(built(gym.runner)) == 2


async def test_an_order_of_nobody_ends_no_trainer(gym: Gym) -> None:
    """Whoever can reach the port may leave out who it is."""
    elsewhere = await gym.elsewhere("stranger")
    elsewhere.tell(gym.rank, start(term=99))
    await settle()
    await gym.start()
    assert (gym.engine.built, await gym.completed()) == (1, 0)
    assert gym.system.dead_letters.counts["not_allowed"] == 1


async def test_a_strangers_orders_are_refused(gym: Gym) -> None:
    """Whoever can reach the port: nothing is trained, written or deleted for them."""
    await gym.start()
    stranger = await recorder(gym.system, "stranger")
    orders = [
        gym.batch(0),
        Publish(0, False, gym.store.writable_by("node")),
        SaveState(0, (gym.store.writable_by("node"),)),
        ExportModel(0, 0, gym.state(), gym.store.writable_by("node")),
        start(term=99),
    ]
    for order in orders:
        stranger.tell(gym.rank, order)
    await settle()
    assert stranger.inbox == []
    assert gym.engine.trainer.batches == []
    assert (gym.engine.saved, gym.engine.exported) == ([], [])
    assert (gym.engine.built, await gym.completed()) == (1, 0)
    assert gym.system.dead_letters.counts["not_allowed"] == len(orders) - 1


async def test_only_the_node_says_whose_orders_count(gym: Gym) -> None:
    stranger = await recorder(await gym.elsewhere("stranger"), "stranger")
    membership = Membership(*[stranger.ref] * 2, gym.store.writable_by("node"))
    stranger.tell(gym.rank, Planner().prepare(membership))
    stranger.tell(gym.rank, start(term=9))
    await settle()
    assert gym.engine.built == 0


async def test_an_order_that_comes_before_its_runner_is_named_waits_for_that(gym: Gym) -> None:
    successor = await recorder(await gym.elsewhere("another"), "runner")
    successor.tell(gym.rank, start(term=2))
    await settle()
    assert gym.engine.built == 0
    await gym.prepare(successor)
    assert gym.engine.built == 1
    assert successor.inbox == [TrainerReport(2, 0, 0)]


async def test_rank_0_of_several_says_where_it_listens_as_often_as_it_is_told(gym: Gym) -> None:
    order = start(world=2)
    async with gym.context.accelerator_turn():
        await gym.tell(order)
        await gym.tell(order)
        first, second = reports(gym.runner)
        assert first == second
        assert first.completed == -1, "it is still being built"
        host, _, port = first.listens_at.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5.0):
            pass
    await settle()
    assert gym.engine.rendezvous == first.listens_at, "it meets the others where it says"


async def test_the_ranks_behind_the_first_meet_it_where_they_are_told(gym: Gym) -> None:
    await gym.tell(start(rank=1, world=2, rendezvous="somewhere:1"))
    await settle()
    assert gym.engine.rendezvous == "somewhere:1"


async def test_a_rank_that_others_have_replaced_frees_its_trainer(gym: Gym) -> None:
    await gym.start(term=2)
    await gym.replace_trainers(2)
    assert await gym.completed() == 0, "it is of that term itself"
    await gym.replace_trainers(3)
    assert await gym.completed() == -1


async def test_weights_are_published_when_the_nodes_store_is_back(gym: Gym) -> None:
    """Its node stood still for a while."""
    gym.engine.uploads_to_fail = 3
    await gym.start()
    await gym.tell(Publish(0, False, gym.store.writable_by("node")))
    await asyncio.sleep(10.0)
    assert [each.version for each in published(gym.runner)] == [0]
    assert errors(gym.runner) == []


async def test_ranks_that_lost_each_other_say_so(gym: Gym) -> None:
    await gym.start()
    gym.engine.trainer.error = TransportError("all-reduce: rank 0 of 2 lost its peers")
    await gym.tell(gym.batch(0))
    assert gym.runner.last(TrainerReport).lost_others


async def test_what_a_lost_accelerator_leaves_undone_is_not_answered(gym: Gym) -> None:
    """Its process ends, and others train; the job has not failed."""
    await gym.start()
    gym.engine.trainer.error = torch.AcceleratorError("CUDA error: device-side assert triggered")
    await gym.tell(gym.batch(0))
    assert gym.context.ends_because.startswith("the accelerator is lost: AcceleratorError")
    assert trained(gym.runner) == []
    assert not any(answer.error for answer in gym.runner.all(TrainerReport))
