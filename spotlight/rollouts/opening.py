"""Opens what a session needs: a connection, a store, and for a local session the daemons too."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.runtime import ActorRef, ActorSystem
from spotlight.actors.runtime.logs import log_to_the_program
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
from spotlight.jobs.hub_names import HUB
from spotlight.jobs.problems import job_error
from spotlight.join_token import JoinToken
from spotlight.permissions import Permissions
from spotlight.rollouts.publication import Publications
from spotlight.running.join_option import transport_of
from spotlight.store.memory_folder import MemoryFolder, usable_base
from spotlight.timings import Timings
from spotlight.transport.addresses import is_loopback, read_address, tcp_address
from spotlight.transport.control import ZeroMQSettings
from spotlight.transport.tensors import BundleStore, DataPort, fetch
from spotlight.transport.tensors.certificates import new_certificate
from spotlight.types import BundleOffer

if TYPE_CHECKING:
    from torch import Tensor


def work_of(
    model: ModelSpec | Mapping[str, Any] | str,
    sampler: SamplerSpec | Mapping[str, Any],
    rewards: Sequence[RewardSpec | Mapping[str, Any]],
    threads: int,
) -> WorkSpec:
    """What workers must know; raises `JobError` naming the field that is wrong."""
    named = {"checkpoint": model} if isinstance(model, str) else _data(model)
    checkpoint = named.get("checkpoint")
    if isinstance(checkpoint, str) and not checkpoint.startswith(("builtin:", HUB)):
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


@dataclass(frozen=True)
class Connection:
    """The connection and store of a session."""

    system: ActorSystem
    coordinator: ActorRef
    publications: Publications
    fetch: Callable[[BundleOffer], Awaitable[bytes]]
    """The bytes of a bundle."""
    unpack: Callable[[bytes], Mapping[str, Tensor]]
    """The tensors in these bytes."""
    timings: Timings
    weight: float = 1.0
    """The share of the nodes is in proportion to it."""


@asynccontextmanager
async def connected(
    join: JoinToken, work: WorkSpec, *, host: str, store: Path | str | None, weight: float = 1.0
) -> AsyncIterator[Connection]:
    """A connection to the coordinator that a token names; see `Rollouts.connect`."""
    log_to_the_program()
    timings = Timings()
    host = host or await asyncio.to_thread(_own_address, join)
    memory = MemoryFolder(_store_base(store))
    async with AsyncExitStack() as stack:
        stack.callback(memory.remove)
        token = secrets.token_hex(16)
        certificate = None if is_loopback(host) else await asyncio.to_thread(new_certificate)
        port = await stack.enter_async_context(
            DataPort(host, certificate=certificate, timings=timings.transfers)
        )
        bundles = BundleStore(memory.path, token=token, port=port, timings=timings.transfers)
        await bundles.start()
        stack.push_async_callback(bundles.aclose)
        settings = ZeroMQSettings(timings.connections)
        system = ActorSystem(
            transport_of(join, tcp_address(host, 0), settings),
            rng=random.Random(secrets.randbits(64)),
            rights=MAY_SAY,
            timings=timings.runtime,
        )
        await system.start()
        stack.push_async_callback(system.aclose)
        yield Connection(
            system,
            system.well_known(join.coordinator, "coordinator"),
            Publications(bundles, work.model.tuning),
            lambda offer: fetch(offer, timings.transfers),
            _unpack,
            timings,
            weight,
        )


@asynccontextmanager
async def connected_locally(
    workers: int, work: WorkSpec, *, store: Path | str | None
) -> AsyncIterator[Connection]:
    """The same to daemons of this machine, which end with it; see `Rollouts.local`."""
    from spotlight.running.local_cluster import LocalPlaces, local_cluster

    pools = _one_node(workers)
    places = LocalPlaces(_store_base(store), permissions=Permissions.of(work))
    folder = MemoryFolder(Path(tempfile.gettempdir()))
    try:
        async with (
            local_cluster(pools, folder.path, places) as cluster,
            connected(cluster.join, work, host="127.0.0.1", store=store) as connection,
        ):
            yield connection
    finally:
        folder.remove()


def _store_base(store: Path | str | None) -> Path | None:
    return usable_base("store", Path(store) if store is not None else None)


def _unpack(data: bytes) -> Mapping[str, Tensor]:
    from spotlight.transport.tensors.bundles import unpack

    return unpack(data)


def _one_node(workers: int) -> PoolsSpec:
    data = {"workers": workers}
    try:
        reserved = msgspec.convert(data, PoolSpec)
    except msgspec.ValidationError as error:
        raise job_error(str(error), data, PoolSpec) from error
    return PoolsSpec(reserved=reserved, spot=PoolSpec(nodes=0))


def _own_address(join: JoinToken) -> str:
    """By which this machine reaches the coordinator, and so, most often, is reached."""
    host, port = read_address("join", join.place, to_bind=False)
    try:
        family, kind, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # sends nothing
            found: str = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        raise JobError("join", f"`{join.place}` cannot be reached ({error})") from error
    return found
