"""Opens what a session needs: connection, store, and on one machine the daemons too."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from spotlight.actors.runtime import ActorSystem
from spotlight.errors import JobError
from spotlight.jobs import (
    ModelSpec,
    PoolSpec,
    PoolsSpec,
    RewardSpec,
    SamplerSpec,
    WorkSpec,
    work_from_data,
)
from spotlight.rollouts.publication import Publications
from spotlight.rollouts.rollouts import Rollouts
from spotlight.store.memory_folder import MemoryFolder
from spotlight.timings import Timings
from spotlight.transport.control import ZeroMQSettings, ZeroMQTransport
from spotlight.transport.control_address import control_address
from spotlight.transport.tensors import BundleStore, fetch


def work_of(
    model: ModelSpec | Mapping[str, Any] | str,
    sampler: SamplerSpec | Mapping[str, Any],
    rewards: Sequence[RewardSpec | Mapping[str, Any]],
    threads: int,
) -> WorkSpec:
    """What workers must know; raises `JobError` naming the field that is wrong."""
    named = {"checkpoint": model} if isinstance(model, str) else _data(model)
    checkpoint = named.get("checkpoint")
    if isinstance(checkpoint, str) and not checkpoint.startswith("builtin:"):
        named["checkpoint"] = str(Path(checkpoint).expanduser().absolute())
    data = {
        "model": named,
        "sampler": _data(sampler),
        "rewards": [_data(reward) for reward in rewards],
        "threads": threads,
    }
    return work_from_data(data)


def _data(section: msgspec.Struct | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(section, msgspec.Struct):
        found: dict[str, Any] = msgspec.to_builtins(section)
        return found
    return dict(section)


@asynccontextmanager
async def open_session(
    address: str, work: WorkSpec, *, tensors: bool, host: str
) -> AsyncIterator[Rollouts]:
    """A session with the coordinator at an address; see `Rollouts.connect`."""
    timings = Timings()
    memory = MemoryFolder()
    async with AsyncExitStack() as stack:
        stack.callback(memory.remove)
        address = control_address("address", address)
        host = host or await asyncio.to_thread(_own_address, address)
        store = BundleStore(
            memory.path, token=secrets.token_hex(16), host=host, timings=timings.transfers
        )
        await store.start()
        stack.push_async_callback(store.aclose)
        transport = ZeroMQTransport(f"tcp://{host}:0", settings=ZeroMQSettings(timings.connections))
        rng = random.Random(secrets.randbits(64))
        system = ActorSystem(transport, rng=rng, timings=timings.runtime)
        await system.start()
        stack.push_async_callback(system.aclose)
        rollouts = Rollouts(
            system,
            system.well_known(address, "coordinator"),
            secrets.token_hex(8),
            work,
            Publications(store, work.model.tuning),
            lambda offer: fetch(offer, timings.transfers),
            tensors=tensors,
            timings=timings,
        )
        stack.push_async_callback(rollouts.end)
        await rollouts.begin()
        yield rollouts


@asynccontextmanager
async def open_local(workers: int, work: WorkSpec, *, tensors: bool) -> AsyncIterator[Rollouts]:
    """A session with daemons of this machine; see `Rollouts.local`."""
    from spotlight.running.local_cluster import local_cluster

    folder = MemoryFolder(Path(tempfile.gettempdir()))
    try:
        async with (
            local_cluster(_one_node(workers), folder.path) as cluster,
            open_session(cluster.address, work, tensors=tensors, host="127.0.0.1") as rollouts,
        ):
            yield rollouts
    finally:
        folder.remove()


def _one_node(workers: int) -> PoolsSpec:
    if workers < 1:
        raise JobError("workers", f"must be at least 1, not {workers}")
    try:
        return PoolsSpec(reserved=PoolSpec(workers=workers), spot=PoolSpec(nodes=0))
    except ValueError as error:
        raise JobError("workers", str(error).partition("|")[2]) from error


def _own_address(address: str) -> str:
    """By which this machine reaches the coordinator, and so, most often, is reached."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, *_, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # sends nothing
            found: str = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        raise JobError("address", f"`{address}` cannot be reached ({error})") from error
    return found
