"""Groups of ranks that have nobody to tell them where they meet: those of tests and benchmarks."""

from __future__ import annotations

import socket

from spotlight.transport.collectives import Backend, Group, listen, meet, reach_store, serve_store


def init_group(
    rank: int,
    world: int,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    timeout_s: float,
    backend: Backend = "gloo",
    listener: socket.socket | None = None,
) -> Group:
    """Join a group of `world` ranks that meet at rank 0's store on `host`:`port`; blocks at most
    `timeout_s`.

    Rank 0 listens there itself, or takes over `listener` (see `listen`). `timeout_s` also bounds
    every later collective. Raises `TransportError` when the others do not come in time,
    `AddressInUse`, and `ValueError` for an impossible rank.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} does not exist in a group of {world}")
    if rank == 0:
        listener = listener or listen(host, port)
        port = listener.getsockname()[1]
    else:
        listener = None
    store = (
        serve_store(host, listener, timeout_s=timeout_s)
        if listener is not None
        else reach_store(host, port, timeout_s=timeout_s)
    )
    return meet(
        rank,
        world,
        store,
        f"{host}:{port}",
        connect_s=timeout_s,
        timeout_s=timeout_s,
        host=host,
        backend=backend,
    )
