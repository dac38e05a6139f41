"""A session of a program in a simulated cluster: the real `Rollouts`, with names of weights and
rows of fingerprints where tensors would be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.runtime import ActorSystem
from spotlight.jobs import WorkSpec
from spotlight.rollouts.opening import Connection
from spotlight.rollouts.rollouts import Rollouts
from spotlight.timings import Timings
from spotlight_simulation import fingerprints
from spotlight_simulation.fake_denoising import decode_commit
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.memory_store import SimulatedStore


class FakePublications:
    """Stands where a program's `Publications` does; what is published is the weights' name."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self.offers: dict[int, WeightsOffer] = {}
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        self.largest = 1024 * 1024

    @property
    def newest(self) -> int:
        """See `Publications`."""
        return max(self.offers, default=-1)

    def require(self, version: int, kind: str, weights: str) -> str:
        """See `Publications`; everything fits."""
        return weights

    def pack(self, version: int, weights: str) -> WeightsOffer:
        """See `Publications`."""
        named = fingerprints.Weights(version, weights)
        packed = msgspec.msgpack.encode(named)
        return WeightsOffer(version, (self._store.put(_key(version), packed),))

    def keep(self, versions: Collection[int]) -> None:
        """See `Publications`."""
        for version in [each for each in self.offers if each not in versions]:
            del self.offers[version]
            self._store.delete(_key(version))


class _NoNoisySteps:
    """Log-probabilities of a sampler without noise."""

    shape = (0, 0)


@asynccontextmanager
async def session(
    cluster: Cluster,
    system: ActorSystem,
    process: str,
    name: str,
    work: WorkSpec,
    *,
    tensors: bool = True,
) -> AsyncIterator[Rollouts]:
    """As `Rollouts.connect` does, in a process whose actor system this is. The latents of a sample
    are a `fingerprints.Row`.
    """
    store = cluster.stores.open(process, f"{process} {name}")
    await store.start()
    connection = Connection(
        system,
        cluster.coordinator_actor(),
        cast(Any, FakePublications(store)),
        cluster.stores.fetch,
        _unpack,
        Timings(),
    )
    rollouts = Rollouts(connection, name, work, tensors=tensors)
    try:
        await rollouts.begin()
        yield rollouts
    finally:
        await rollouts.end()
        await store.aclose()


def _unpack(data: bytes) -> Mapping[str, Any]:
    return {"latents": decode_commit(data).rows, "log_probs": _NoNoisySteps()}


def _key(version: int) -> str:
    return f"weights/{version}"
