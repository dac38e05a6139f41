"""How a version gets to many nodes: real stores on real sockets, each on a machine of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fleet_kit import JobNodes
from job_kit import Recorder, recorder
from runtime_kit import Cluster

from spotlight.actors.coordinator.tenant.publications import Publications
from spotlight.actors.node.weights_copies import WeightsCopies
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.runtime import ActorRef
from spotlight.policies.fleet.weight_distribution import FED_AT_ONCE
from spotlight.timings import WeightsTimings
from spotlight.transport.tensors import BundleStore, content_key
from spotlight.transport.tensors import store as store_module

WEIGHTS = random.Random(0).randbytes(3 << 20)
REF = ActorRef("memory://node", "node", 1)


class CountingStore(BundleStore):
    """Counts how often it is read, and by how many at a time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.reads = self.readers = self.most_readers = 0

    async def _send(self, *args: Any) -> None:
        self.reads += 1
        self.readers += 1
        self.most_readers = max(self.most_readers, self.readers)
        await asyncio.sleep(0.02)  # else one is done before the next begins
        try:
            await super()._send(*args)
        finally:
            self.readers -= 1


class Site:
    """A trainer's node, eight others, and a job runner's view of them."""

    actor: Recorder
    """Whose tasks fetch, for all nodes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, monkeypatch
        self.stores: dict[str, CountingStore] = {}
        self.copies: dict[str, WeightsCopies] = {}
        self.nodes = JobNodes()
        self.publications = Publications({}, self.nodes.tenant, WeightsTimings())
        self.key = ""
        """Of the copies."""
        self.missed = 0

    async def open(self, name: str) -> None:
        self.patch.setattr(store_module, "machine_identity", lambda: name)
        store = self.stores[name] = CountingStore(self.folder / name, token="token")
        await store.start()
        changed = partial(self._changed, name)
        self.copies[name] = WeightsCopies(
            SimpleNamespace(run_task=self.actor.run_task, files_changed=changed),
            store,
            WeightsTimings(),
        )
        self.copies[name].begin("job")
        self.nodes.hear(NodeReport(1, name, "spot", REF, (), store.endpoint))
        self.publications.node_changed(name)

    def direct(self) -> None:
        now = asyncio.get_running_loop().time()
        for name, offer in self.publications.directions(now):
            self.copies[name].follow((offer,), (0,))

    def _changed(self, name: str) -> None:
        """A node reports."""
        copies, now = self.copies[name], asyncio.get_running_loop().time()
        self.missed += len(copies.missed)
        self.publications.note_copies(name, copies.held)
        self.publications.note_missed(name, copies.missed, now)
        self.direct()

    def publish(self) -> None:
        offer = self.stores["trainer"].put("weights/000000-rollout", WEIGHTS)
        self.key = content_key(offer.key, offer.checksum)
        self.publications.add(WeightsOffer(0, (offer,)), ())

    def holders(self) -> set[str]:
        return {name for name in self.stores if (self.folder / name / self.key).exists()}

    async def until_held(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.holders()) < count:
                self.direct()  # as the job runner does every second
                await asyncio.sleep(0.01)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    site = Site(tmp_path, monkeypatch)
    async with Cluster() as cluster:
        site.actor = await recorder(await cluster.system("nodes"), "nodes")
        for name in ("trainer", *(f"node-{i}" for i in range(8))):
            await site.open(name)
        yield site
    for store in site.stores.values():
        await store.aclose()


async def test_eight_nodes_read_the_trainers_node_four_times_at_most(site: Site) -> None:
    site.publish()
    await site.until_held(9)
    assert 2 <= site.stores["trainer"].reads <= 4
    assert sum(store.reads for store in site.stores.values()) == 8
    assert max(store.most_readers for store in site.stores.values()) <= FED_AT_ONCE
    for name in site.stores:
        assert (site.folder / name / site.key).read_bytes() == WEIGHTS


async def test_when_holders_are_out_of_reach_the_others_get_it_all_the_same(site: Site) -> None:
    site.publish()
    await site.until_held(3)  # the trainer's node and two others
    for name in site.holders() - {"trainer"}:
        await site.stores[name].aclose()
    await site.until_held(9)
    assert site.missed > 0
