"""A member that computes gradients of slices of an update with a real tiny model, for a rank that
adds them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from job_kit import job, request
from member_kit import (
    NOISY,
    PERSISTENT,
    ReadyEngine,
    Worker,
    assert_same_bits,
    one_thread,
    ready_models,
    until,
    wanted,
)
from msgspec import structs
from rank_kit import take_all
from runtime_kit import Cluster

from spotlight.actors.protocol.down import Grant, Recall, Revoke, WeightsOffer
from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.actors.protocol.trainer import StartTrainer, Train
from spotlight.actors.protocol.up import Completed, LeaseFailed, ReturnLease
from spotlight.actors.worker.commit_bundles import pack_commit
from spotlight.actors.worker.engine import Origin
from spotlight.actors.worker.torch_model import TorchModel
from spotlight.actors.worker.torch_trainer import TorchTrainer
from spotlight.diffusion.checkpoints import load_model
from spotlight.errors import TransferFailed
from spotlight.jobs import JobSpec
from spotlight.training.slices import unpack as unpack_gradient
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors.bundles import pack, unpack
from spotlight.types import BundleOffer, TrainingSample

SLICES = 4
NFT = job(training={"slices": SLICES, "micro_batch": 2})
GRPO = job(
    sampler={"kind": "flow_sde", "steps": 5, "window": {"length": 2, "latest": 4}},
    training={
        "loss": "flow_grpo",
        "kl": 0.1,
        "learning_rate": 0.01,
        "rollout_decay": 0.0,
        "slices": SLICES,
        "micro_batch": 2,
    },
)
REQUESTS = wanted(*range(8), settings=structs.replace(NOISY, micro_batch=8))
ADVANTAGES = (0.5, -0.5, 1.0, -1.0, 0.25, -0.25, 2.0, -2.0)


@pytest.fixture(autouse=True)
def equal_bits() -> Iterator[None]:
    with one_thread():
        yield


class Bench:
    """A member whose node has copies of what a rank elsewhere has lent for an update."""

    worker: Worker
    rank: TorchTrainer
    batch: BundleOffer
    lent: BundleOffer
    reference: BundleOffer | None = None

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec

    async def open(self, cluster: Cluster, store: BundleStore) -> None:
        self.rank = TorchTrainer(
            StartTrainer("job", self.spec, 0, 1, "", 0, (), 1),
            load_model(self.spec.model),
            [],
            "",
            None,
            lambda: None,
        )
        self.worker = Worker(store, ReadyEngine(ready_models()[0]))
        await self.worker.open(cluster, "w", self.rank.weights("rollout"), PERSISTENT)
        self.lay(await self._denoised())
        here = store.writable_by("rank")
        engine = self.worker.engine
        self.lent = await engine.save_weights(here, "weights/lent", self.rank.weights("current"))
        if self.rank.has_reference:
            old = self.rank.weights("reference")
            self.reference = await engine.save_weights(here, "weights/lent-reference", old)
        await self.has(self.lent, *([self.reference] if self.reference is not None else []))

    async def has(self, *lent: BundleOffer) -> None:
        """The node has these by now."""
        job = self.worker.planner.plan.job
        assert job is not None
        copies = tuple(WeightsOffer(number, (each,)) for number, each in enumerate(lent))
        await self.worker.ask(
            self.worker.planner.next(
                job=structs.replace(job, lent=copies),
                store=self.worker.store.writable_by("node", "gradients"),
            )
        )

    async def _denoised(self) -> bytes:
        def denoise() -> bytes:
            model = TorchModel(load_model(self.spec.model))
            denoising = model.begin(REQUESTS, None)
            while not denoising.done:
                denoising.step()
            return pack_commit(Origin("job", 0), REQUESTS, denoising.progress())

        return await self.worker.context.on_accelerator(denoise)

    def lay(self, data: bytes) -> None:
        """Begin the rank's update on these samples."""
        self.batch, self.data = self.worker.store.put("samples/0", data), data
        rows = enumerate(ADVANTAGES)
        self.order = Train(
            0,
            1,
            tuple(
                TrainingSample(REQUESTS[row].prompt, self.batch, row, good, REQUESTS[row].seed)
                for row, good in rows
            ),
        )
        self.rank.begin(self.order, {"samples/0": data})

    def slice(self, place: int, **changes: Any) -> SliceOrder:
        """What is asked of the member; `changes` are those of the slice."""
        share = self.rank.update
        assert share is not None
        its = share.slices[place]
        return SliceOrder(
            self.spec.training,
            self.spec.sampler,
            self.spec.seed,
            reuse=False,
            window_start=self.order.window_start,
            share=structs.replace(share, slices=(structs.replace(its, **changes),)),
            samples=tuple(self.order.samples[sample] for sample in its.samples),
            weights=(self.lent,),
            reference=(self.reference,) if self.reference is not None else (),
        )

    def grant(self, order: SliceOrder, version: int = 0) -> None:
        self.worker.leases += 1
        one = request(order.slice.index, "gradient", version=version)
        self.worker.tell(Grant(self.worker.leases, (one,), (None,), 0, order))

    async def answers(self, count: int = 1) -> Any:
        """The latest of so many."""
        return (await self.worker.hears(count))[-1]


@pytest.fixture
def spec() -> JobSpec:
    return NFT


@pytest.fixture
async def bench(spec: JobSpec, tmp_path: Path) -> AsyncIterator[Bench]:
    async with Cluster() as cluster:
        store = BundleStore(tmp_path / "store", token="token")
        await store.start()
        bench = Bench(spec)
        await bench.open(cluster, store)
        yield bench
        await store.aclose()
        bench.worker.context.close()


@pytest.mark.parametrize("spec", [NFT, GRPO], ids=["nft", "grpo with a reference"])
async def test_a_rank_that_adds_what_members_computed_has_the_bits_of_one_that_computed_it(
    bench: Bench,
) -> None:
    share = bench.rank.update
    assert share is not None and len(share.slices) == SLICES
    found: dict[int, bytes] = {}
    for count, place in enumerate(reversed(range(1, SLICES)), 1):
        bench.grant(bench.slice(place))
        done = await bench.answers(count)
        assert isinstance(done, Completed), done
        assert (done.rewards, done.steps) == (((),), 0)
        found[place] = await fetch(done.bundle)
    bench.rank.compute(lambda: True)
    for place in range(1, SLICES):
        bench.rank.add(found[place])
    bench.rank.step()
    model = load_model(bench.spec.model)
    alone = TorchTrainer(
        StartTrainer("job", bench.spec, 0, 1, "", 0, (), 1), model, [], "", None, lambda: None
    )
    metrics = take_all(alone, bench.order, {"samples/0": bench.data})
    assert_same_bits(bench.rank.state().tensors, alone.state().tensors)
    assert bench.rank.metrics() == metrics


async def test_what_it_denoises_later_has_the_bits_of_before(bench: Bench) -> None:
    bench.worker.denoise(REQUESTS[:2])
    before = await bench.worker.done()
    bench.grant(bench.slice(1))
    assert isinstance(await bench.answers(2), Completed)
    bench.worker.denoise(REQUESTS[:2])
    assert_same_bits(await bench.worker.done(), before)


async def test_an_update_of_the_weights_that_roll_out_needs_no_others(bench: Bench) -> None:
    bench.grant(structs.replace(bench.slice(1), weights=()))
    bench.grant(bench.slice(1))
    await bench.answers(2)
    both = [await fetch(done.bundle) for done in bench.worker.leader.all(Completed)]
    first, second = map(unpack_gradient, both)
    assert torch.equal(first.gradient, second.gradient)
    assert torch.equal(first.sums, second.sums)


async def test_the_weights_of_an_update_are_fetched_once_for_all_its_slices(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    engine, fetch_weights = bench.worker.engine, bench.worker.engine.fetch_weights

    async def noted(parts: Any) -> Any:
        fetched.extend(part.key for part in parts)
        return await fetch_weights(parts)

    monkeypatch.setattr(engine, "fetch_weights", noted)
    for count, place in enumerate((3, 2, 1), 1):
        bench.grant(bench.slice(place))
        await bench.answers(count)
    assert fetched == [bench.lent.key]


async def test_the_latest_gradients_of_a_worker_stay_in_its_node_s_store(bench: Bench) -> None:
    for count in range(1, 6):
        bench.grant(bench.slice(1))
        await bench.answers(count)
    keys = [done.bundle.key for done in bench.worker.leader.all(Completed)]
    assert keys == [f"gradients/w/{n}" for n in (0, 1, 2, 3, 0)]


# --- what it cannot compute ---


async def failure(bench: Bench) -> str:
    found = await bench.answers()
    assert isinstance(found, LeaseFailed), found
    return found.error


async def test_a_slice_waits_for_weights_that_its_node_has_yet_to_get(bench: Bench) -> None:
    await bench.has()
    bench.grant(bench.slice(1))
    await asyncio.sleep(0.05)
    assert bench.worker.leader.all(Completed) == []
    await bench.has(bench.lent)
    assert isinstance(await bench.answers(), Completed)


async def test_a_version_that_is_not_held_is_a_failure_that_names_it(bench: Bench) -> None:
    bench.grant(bench.slice(1), version=7)
    assert "version 7 is not held here" in await failure(bench)


async def test_a_member_without_a_store_says_so(bench: Bench) -> None:
    await bench.worker.ask(bench.worker.planner.next(store=None))
    bench.grant(bench.slice(1))
    assert "no job is prepared" in await failure(bench)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"first": 10**9}, "rows up to"),
        ({"rows": 1000}, "rows up to"),
        ({"samples": (0, 1, 2, 3, 4)}, "samples for a slice of 5"),
        ({"draws": ()}, "must match"),
    ],
    ids=["begins too late", "too long", "other samples", "no draws"],
)
async def test_a_slice_that_cannot_be_is_a_failure_and_the_member_goes_on(
    bench: Bench, changes: dict[str, Any], problem: str
) -> None:
    bench.grant(bench.slice(1, **changes))
    assert problem in await failure(bench)
    bench.grant(bench.slice(1))
    assert isinstance(await bench.answers(2), Completed)


async def test_samples_that_are_gone_are_no_fault_of_who_computes(bench: Bench) -> None:
    order = bench.slice(1)
    bundle = structs.replace(order.samples[0].bundle, key="samples/gone")
    samples = tuple(structs.replace(sample, bundle=bundle) for sample in order.samples)
    bench.grant(structs.replace(order, samples=samples))
    assert "samples/gone" in await failure(bench)
    assert [failed.what for failed in bench.worker.leader.all(LeaseFailed)] == ["commits"]


async def test_nan_in_a_slice_is_a_failure_that_names_prompt_and_seed(bench: Bench) -> None:
    tensors = unpack(bench.data)
    tensors["latents"][3] = torch.nan
    bundle = bench.worker.store.put("samples/nan", pack(tensors))
    order = bench.slice(1)
    samples = tuple(structs.replace(sample, bundle=bundle, row=3) for sample in order.samples[:1])
    bench.grant(structs.replace(order, samples=(*samples, *order.samples[1:])))
    problem = await failure(bench)
    assert "TrainingDiverged" in problem and "nothing of it is counted" in problem
    assert repr(samples[0].prompt) in problem and f"seed {samples[0].seed}" in problem


# --- half-way ---


class Held:
    """Gradients that are computed until a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.count = 0

        def slice_gradient(
            model: Any, order: Any, bundles: Any, use: Any, wanted: Callable[[], bool]
        ) -> bytes | None:
            self.count += 1
            self.begun.set()
            assert self.go_on.wait(60.0)
            return b"gradient" if wanted() else None

        monkeypatch.setattr(TorchModel, "slice_gradient", slice_gradient)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.go_on.set()


@pytest.mark.parametrize("why", ["recalled", "its node leaves", "both"])
async def test_a_slice_is_given_back_half_way_when_others_are_to_go_on(
    bench: Bench, held: Held, why: str
) -> None:
    bench.grant(bench.slice(1))
    await until(held.begun.is_set)
    if why != "its node leaves":
        bench.worker.tell(Recall((1,)))
    if why != "recalled":
        await bench.worker.drain(30.0)
    await asyncio.sleep(0.05)
    held.go_on.set()
    assert await bench.answers() == ReturnLease("w", 1, 1)


async def test_nothing_is_left_or_told_of_a_slice_that_was_revoked_half_way(
    bench: Bench, held: Held
) -> None:
    bench.grant(bench.slice(1))
    await until(held.begun.is_set)
    bench.worker.tell(Revoke((1,)))
    await asyncio.sleep(0.05)
    held.go_on.set()
    bench.worker.denoise(REQUESTS[:1])
    await bench.worker.done()
    assert not [m for m in bench.worker.leader.all(Completed) if m.lease == 1]
    with pytest.raises(TransferFailed):
        await bench.worker.store.offer("gradients/w/0")


async def test_a_slice_that_has_not_begun_is_given_back_at_once(bench: Bench, held: Held) -> None:
    bench.grant(bench.slice(1))
    await until(held.begun.is_set)
    bench.grant(bench.slice(2))
    bench.worker.tell(Recall((2,)))
    assert await bench.answers() == ReturnLease("w", 1, 2)
    held.go_on.set()
    assert isinstance(await bench.answers(2), Completed)
    assert held.count == 1


async def test_a_member_that_must_leave_takes_no_slice(bench: Bench, held: Held) -> None:
    await bench.worker.drain(30.0)
    bench.grant(bench.slice(1))
    assert await bench.answers() == ReturnLease("w", 1, 1)
    assert held.count == 0
