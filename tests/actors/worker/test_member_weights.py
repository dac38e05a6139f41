"""A member holds its node's copies as they are: mapped, for as long as it holds the version."""

from __future__ import annotations

import gc
import zlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from member_kit import until
from plan_kit import Planner, ReportedTo, reported_to
from runtime_kit import Cluster
from scorer_kit import use_scorer
from torch import Tensor

from spotlight.actors.protocol import Membership
from spotlight.actors.runtime import ActorSystem
from spotlight.actors.worker import member
from spotlight.actors.worker.member import Member
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.transport.tensors import BundleStore, content_key
from spotlight.transport.tensors.bundles import pack
from spotlight.types import BundleOffer


class Model:
    """Takes what is loaded, as a model does."""

    def __init__(self) -> None:
        self.parameter = torch.zeros(300_000)
        self.loads = 0

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        self.parameter.copy_(state["a"])
        self.loads += 1


class Bench:
    """A member and its node's store."""

    system: ActorSystem
    store: BundleStore
    member: Member
    leader: ReportedTo
    planner: Planner

    async def copied(self, version: int, data: bytes | None = None) -> BundleOffer:
        data = pack({"a": torch.full((300_000,), float(version))}) if data is None else data
        published = self.store.put(f"weights/{version}", data)
        return await self.store.copy(published, content_key(published.key, zlib.crc32(data)))

    async def hold(self, version: int, offer: BundleOffer, *keep: int) -> None:
        plan = self.planner.hold(version, offer, keep=keep)
        await self.leader.ask(self.member.ref, plan, timeout_s=30.0)
        await until(lambda: self.leader.report.plan == plan.number)
        await until(lambda: version in self.leader.report.rollout)
        await self.context.on_packer(lambda: None)  # the pages are touched by now

    def mapped(self) -> int:
        gc.collect()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return len({line.split()[-1] for line in lines if self.store.endpoint.root in line})

    async def load(self, model: Any, version: int) -> None:
        weights = self.member._held((version, False))
        await self.context.on_accelerator(lambda: self.member._load(model, weights))


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Cluster() as cluster:
        bench = Bench()
        bench.system = await cluster.system("worker")
        bench.store = BundleStore(tmp_path / "store", token="token")
        await bench.store.start()
        bench.context = WorkerContext("w", 1, "")
        bench.member = Member(bench.context)
        await bench.system.spawn(lambda: bench.member, "member")
        bench.leader, bench.planner = await reported_to(bench.system), Planner()
        use_scorer(monkeypatch)
        monkeypatch.setattr(member, "load_model", lambda spec: Model())
        membership = Membership(*[bench.leader.ref] * 2, bench.store.endpoint)
        await bench.leader.ask(bench.member.ref, bench.planner.prepare(membership), timeout_s=30.0)
        yield bench
        await bench.store.aclose()
        bench.context.close()


async def test_a_version_is_mapped_while_it_is_held_even_if_its_node_drops_it(
    bench: Bench,
) -> None:
    model = Model()
    await bench.hold(1, await bench.copied(1))
    await bench.hold(2, await bench.copied(2), 1, 2)
    assert bench.mapped() == 2
    bench.store.delete("weights")
    await bench.load(model, 1)
    assert model.parameter.eq(1.0).all()
    await bench.load(model, 2)
    assert model.parameter.eq(2.0).all()


async def test_a_version_that_is_dropped_is_mapped_no_more_though_it_was_loaded(
    bench: Bench,
) -> None:
    model = Model()
    await bench.hold(1, await bench.copied(1))
    await bench.load(model, 1)
    await bench.hold(2, await bench.copied(2))
    assert bench.mapped() == 1


async def test_a_version_is_loaded_once(bench: Bench) -> None:
    model = Model()
    await bench.hold(1, await bench.copied(1))
    await bench.load(model, 1)
    await bench.load(model, 1)
    assert model.loads == 1


async def test_a_version_that_was_trained_again_is_loaded_again(bench: Bench) -> None:
    model = Model()
    await bench.hold(1, await bench.copied(1))
    await bench.load(model, 1)
    again = pack({"a": torch.full((300_000,), 9.0)})
    await bench.hold(1, await bench.copied(1, again))
    await bench.load(model, 1)
    assert model.parameter.eq(9.0).all()
    assert bench.mapped() == 1


async def test_what_is_no_copy_of_the_node_is_fetched(bench: Bench) -> None:
    model = Model()
    data = pack({"a": torch.ones(300_000)})
    await bench.hold(1, bench.store.put("weights/1", data))
    assert bench.mapped() == 0
    await bench.load(model, 1)
    assert model.parameter.eq(1.0).all()


async def test_a_malformed_copy_is_not_held_and_the_next_version_is(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    offer = await bench.copied(1, b"\xff" * 64)
    await bench.leader.ask(bench.member.ref, bench.planner.hold(1, offer), timeout_s=30.0)
    await bench.hold(2, await bench.copied(2), 1, 2)
    assert bench.leader.report.rollout == (2,)
    assert "malformed" in capsys.readouterr().out
