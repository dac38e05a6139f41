"""A member with a real tiny model: exactly the weights that are named, and nothing revoked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import structlog
import torch
from job_kit import job, requests
from member_kit import until
from plan_kit import Planner, ReportedTo, reported_to
from runtime_kit import Cluster
from scorer_kit import FakeScorer, use_scorer

from spotlight.actors.protocol.down import Grant, Membership, Revoke
from spotlight.actors.protocol.up import CommitSteps, Completed, LeaseFailed
from spotlight.actors.runtime import ActorSystem, Message
from spotlight.actors.worker.member import Member
from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.diffusion import samplers
from spotlight.diffusion.checkpoints import load_model
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors.bundles import pack, unpack
from spotlight.types import BundleOffer, Commit, Request


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def weights() -> dict[int, dict[str, torch.Tensor]]:
    """Two versions that give different images."""
    state = load_model(job().model).trainable_state()
    first = {name: tensor.detach().clone() for name, tensor in state.items()}
    return {0: first, 1: {name: tensor * 1.05 for name, tensor in first.items()}}


def batch(
    lease: int,
    wanted: tuple[Request, ...],
    commits: tuple[Commit | None, ...] = (),
    every: int = 0,
) -> Grant:
    return Grant(lease, wanted, commits or (None,) * len(wanted), every)


class Bench:
    """A member, its store of weights and samples, and a recorder as its leader."""

    system: ActorSystem
    store: BundleStore
    leader: ReportedTo
    scorer: FakeScorer

    async def ask(self, message: Message) -> Message:
        return await self.leader.ask(self.member, message, timeout_s=60.0)

    async def prepare(self) -> None:
        await self.ask(self.planner.prepare(self.membership))

    async def hold(self, version: int, keep: tuple[int, ...] = ()) -> None:
        data = pack(self.weights[version])
        offer = self.store.put(f"weights/{version}", data)
        plan = self.planner.hold(version, offer, offer, keep)
        await self.ask(plan)
        await until(lambda: self.leader.report.plan == plan.number)
        await until(lambda: version in self.leader.report.evaluation)

    async def denoise(self, lease: int, count: int = 1, version: int = 0) -> None:
        self.tell(batch(lease, requests(count, version=version)))

    def tell(self, message: Message) -> None:
        self.system.tell(self.member, message, sender=self.leader.ref)

    async def answered(self, count: int = 1) -> list[Message]:
        """What ended batches, once there are so many."""
        while len(self.ends()) < count:
            await self.arrived()
        return self.ends()

    def ends(self) -> list[Message]:
        return [each for each in self.leader.inbox if not isinstance(each, CommitSteps)]

    async def arrived(self) -> None:
        # Each ask is a turn of the loop and of the accelerator's queue.
        await self.prepare()
        await self.context.on_accelerator(lambda: None)

    async def latents(self, bundle: BundleOffer) -> torch.Tensor:
        return unpack(await fetch(bundle))["latents"]


@pytest.fixture
async def bench(weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Cluster() as cluster:
        bench = Bench()
        bench.scorer = use_scorer(monkeypatch)
        bench.weights = weights
        bench.system = await cluster.system("worker")
        bench.store = BundleStore(tmp_path / "store", token="token")
        await bench.store.start()
        bench.leader = await reported_to(bench.system)
        bench.planner = Planner()
        bench.context = WorkerContext("w", 1, bench.system.address)
        engine = TorchEngine()
        shared = SharedModel(bench.context, engine)
        bench.member = await bench.system.spawn(
            lambda: Member(bench.context, engine, shared), "member"
        )
        bench.membership = Membership(*[bench.leader.ref] * 2, bench.store.writable_by("node"))
        await bench.prepare()
        yield bench
        await bench.store.aclose()
        bench.context.close()


async def test_it_denoises_and_leaves_the_bundle_in_the_sink(bench: Bench) -> None:
    await bench.hold(0)
    await bench.denoise(1, count=2)
    (done,) = await bench.answered()
    assert isinstance(done, Completed), done
    latents = await bench.latents(done.bundle)
    assert (len(latents), latents.dtype) == (2, torch.float32)


async def test_it_refuses_a_version_that_it_does_not_hold(bench: Bench) -> None:
    await bench.hold(0)
    await bench.denoise(1, version=1)
    (refused,) = await bench.answered()
    assert isinstance(refused, LeaseFailed)
    assert "WrongWeights: version 1 is not held here; held: [0]" in refused.error


async def test_it_refuses_a_version_that_it_was_told_to_drop(bench: Bench) -> None:
    await bench.hold(0)
    await bench.hold(1, keep=(1,))
    await bench.denoise(1, version=0)
    (refused,) = await bench.answered()
    assert isinstance(refused, LeaseFailed)


async def test_it_uses_exactly_the_version_that_is_named(bench: Bench) -> None:
    await bench.hold(0)
    await bench.hold(1, keep=(0, 1))
    for lease, version in enumerate((0, 1, 0)):
        await bench.denoise(lease, version=version)
        await bench.answered(lease + 1)
    first, other, again = [await bench.latents(m.bundle) for m in bench.leader.all(Completed)]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


async def test_what_is_revoked_is_neither_delivered_nor_an_error(bench: Bench) -> None:
    await bench.hold(0)
    gate = threading.Event()
    busy = asyncio.ensure_future(bench.context.on_accelerator(lambda: gate.wait(30.0)))
    await bench.denoise(1)
    await bench.prepare()
    bench.system.tell(bench.member, Revoke((1,)))
    await bench.denoise(2)
    await bench.prepare()
    gate.set()
    await busy
    (answer,) = await bench.answered()
    assert isinstance(answer, Completed)
    assert answer.lease == 2


async def test_work_of_an_ended_job_is_not_taken_for_that_of_the_next(bench: Bench) -> None:
    await bench.hold(0)
    await bench.denoise(1, count=1)
    bench.tell(bench.planner.end())
    await bench.prepare()
    await bench.hold(0)
    await bench.denoise(1, count=3)
    (answer,) = await bench.answered()
    assert isinstance(answer, Completed)
    assert len(await bench.latents(answer.bundle)) == 3


async def test_a_batch_whose_job_ends_in_the_next_turn_is_never_begun(bench: Bench) -> None:
    await bench.hold(0)
    structlog.reset_defaults()  # so that what is told for debugging is there
    with structlog.testing.capture_logs() as logs:
        bench.tell(batch(1, requests(1)))
        bench.tell(bench.planner.end())
        await bench.ask(bench.planner.end())
        await bench.prepare()
    told = [line["event"] for line in logs]
    assert "job_forgotten" in told
    assert "batch_accepted" not in told


async def test_without_a_job_it_says_so(bench: Bench) -> None:
    bench.tell(bench.planner.end())
    await bench.denoise(1)
    await bench.ask(bench.planner.end())
    (refused,) = await bench.answered()
    assert isinstance(refused, LeaseFailed)
    assert "no job is prepared" in refused.error


@pytest.mark.parametrize("kind", ["rollout", "preview", "evaluation"])
async def test_latents_that_are_not_finite_are_an_error_and_never_a_black_picture(
    bench: Bench, kind: str, tmp_path: Path
) -> None:
    bench.weights = {0: {name: tensor * torch.nan for name, tensor in bench.weights[0].items()}}
    await bench.hold(0)
    wanted = tuple(
        msgspec.structs.replace(one, image_key=f"validation/v0/{one.seed}.png")
        for one in requests(2, kind)
    )
    bench.tell(batch(1, wanted))
    (answer,) = await bench.answered()
    assert isinstance(answer, LeaseFailed)
    assert "NotFinite: 2 of 2 samples are NaN or infinite" in answer.error
    assert f"{wanted[1].prompt!r}, seed {wanted[1].seed}" in answer.error
    assert answer.failed == tuple(request.id for request in wanted)
    assert answer.what == "denoising"
    assert not (tmp_path / "store" / "validation").exists()
    assert bench.scorer.asked == []


async def test_only_the_samples_that_are_not_finite_are_blamed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = samplers.initial_noise

    def noise(seeds: Sequence[int], shape: tuple[int, ...]) -> torch.Tensor:
        drawn = plain(seeds, shape)
        drawn[list(seeds).index(1)] = torch.nan
        return drawn

    monkeypatch.setattr(samplers, "initial_noise", noise)
    await bench.hold(0)
    await bench.denoise(1, count=3)
    (answer,) = await bench.answered()
    assert isinstance(answer, LeaseFailed)
    assert answer.failed == (requests(3)[1].id,)


async def test_pictures_that_are_asked_for_are_in_the_sink(bench: Bench, tmp_path: Path) -> None:
    await bench.hold(0)
    wanted = msgspec.structs.replace(requests(1)[0], image_key="validation/v0/p0.png")
    bench.tell(batch(1, (wanted,)))
    await bench.answered()
    picture = tmp_path / "store" / "validation/v0/w/p0.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


async def test_a_thumbnail_lies_beside_each_picture(bench: Bench, tmp_path: Path) -> None:
    await bench.hold(0)
    wanted = msgspec.structs.replace(requests(1)[0], image_key="validation/v0/p0.png")
    bench.tell(batch(1, (wanted,)))
    await bench.answered()
    thumbnail = tmp_path / "store" / "validation/v0/w/p0.webp"
    assert thumbnail.read_bytes().startswith(b"RIFF")


async def test_thumbnails_of_the_best_and_the_worst_of_a_batch_are_left(
    bench: Bench, tmp_path: Path
) -> None:
    await bench.hold(0)
    wanted = tuple(
        msgspec.structs.replace(one, thumbnail_key=f"pictures/0/0-{place}.webp")
        for place, one in enumerate(requests(4))
    )
    bench.tell(batch(1, wanted))
    (answer,) = await bench.answered()
    assert isinstance(answer, Completed)
    scores = [row[0] for row in answer.rewards]
    folder = tmp_path / "store/pictures/0/w"
    places = {scores.index(max(scores)), scores.index(min(scores))}
    expected = {f"0-{place}.webp" for place in places}
    await until(lambda: folder.is_dir() and {one.name for one in folder.iterdir()} == expected)


async def test_a_thumbnail_that_cannot_be_made_is_no_reason_to_stop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise ValueError("no picture")

    monkeypatch.setattr("spotlight.actors.worker.torch_engine.to_thumbnail", broken)
    await bench.hold(0)
    wanted = msgspec.structs.replace(
        requests(1)[0], image_key="validation/v0/p0.png", thumbnail_key="pictures/0/0-0.webp"
    )
    bench.tell(batch(1, (wanted,)))
    (answer,) = await bench.answered()
    assert isinstance(answer, Completed)
