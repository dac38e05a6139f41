"""A member holds its node's copies as they are: mapped, for as long as it holds the version."""

from __future__ import annotations

import asyncio
import gc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from spotlight.actors.worker.engine import Weights
from spotlight.actors.worker.held_weights import HeldWeights
from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.torch_model import TorchModel
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import TransferFailed
from spotlight.transport.tensors import BundleStore, content_key
from spotlight.transport.tensors.bundles import pack
from spotlight.types import BundleOffer


class Model(TorchModel):
    """Takes what is loaded, as a model does."""

    def __init__(self) -> None:
        self.parameter = torch.zeros(300_000)
        self.loads = 0

    def use(self, weights: Weights) -> None:
        self.parameter.copy_(weights["a"])
        self.loads += 1


class Bench:
    """The weights of a member, and its node's store."""

    store: BundleStore
    context: WorkerContext
    engine: TorchEngine
    weights: HeldWeights
    shared: SharedModel

    async def copied(self, version: int, data: bytes | None = None) -> BundleOffer:
        data = pack({"a": torch.full((300_000,), float(version))}) if data is None else data
        published = self.store.put(f"weights/{version}", data)
        return await self.store.copy(published, content_key(published.key, zlib.crc32(data)))

    async def hold(self, version: int, offer: BundleOffer, *keep: int) -> None:
        await self.weights.hold((version, False), (offer,))
        self.weights.keep(keep or (version,))

    async def maps(self, count: int) -> None:
        """So many bundles are mapped, once the pages of the last one are touched."""
        async with asyncio.timeout(30.0):
            while self._mapped() != count:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    def _mapped(self) -> int:
        gc.collect()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return len({line.split()[-1] for line in lines if self.store.endpoint.root in line})

    async def load(self, model: Model, version: int) -> None:
        held = self.weights.of((version, False))
        await self.context.on_accelerator(lambda: self.shared.install(model, held))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench()
    bench.store = BundleStore(tmp_path / "store", token="token")
    await bench.store.start()
    bench.context = WorkerContext("w", 1, "")
    bench.engine = TorchEngine()
    bench.weights = HeldWeights(bench.engine)
    bench.shared = SharedModel(bench.context, bench.engine)
    yield bench
    await bench.store.aclose()
    bench.context.close()


async def test_a_version_is_mapped_while_it_is_held_even_if_its_node_drops_it(
    bench: Bench,
) -> None:
    model = Model()
    await bench.hold(1, await bench.copied(1))
    await bench.hold(2, await bench.copied(2), 1, 2)
    await bench.maps(2)
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
    await bench.maps(1)


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
    await bench.maps(1)


async def test_what_is_no_copy_of_the_node_is_fetched(bench: Bench) -> None:
    model = Model()
    data = pack({"a": torch.ones(300_000)})
    await bench.hold(1, bench.store.put("weights/1", data))
    await bench.maps(0)
    await bench.load(model, 1)
    assert model.parameter.eq(1.0).all()


async def test_a_malformed_copy_is_not_held(bench: Bench) -> None:
    offer = await bench.copied(1, b"\xff" * 64)
    with pytest.raises(TransferFailed, match="malformed"):
        await bench.weights.hold((1, False), (offer,))
