"""Groups of processes that move tensors together (gloo or NCCL): trainer ranks, and SP groups.

Invariants:
- Every wait ends: joining and each collective fail with `TransportError` after the group's timeout,
  or at once when a peer's process is gone. A group that failed once is not usable any more: close
  it and make a new one.
- Nothing listens on other interfaces than the one given: the rendezvous store is bound to `host`,
  gloo to the address from which this machine reaches `host`.
- Groups are objects, not process-wide state, so a process can leave one and join another, or be in
  several. A group can be abandoned while another thread waits in it: whatever that thread does
  next in this group fails.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Literal

import torch
import torch.distributed

from spotlight.errors import AddressInUse, TransportError

Backend = Literal["gloo", "nccl"]

_c10d: Any = torch.distributed
"""What is used of it here has no complete type stubs."""
_LOOK = timedelta(seconds=0.5)
"""Whether a group is still wanted is looked at so often."""


class Group:
    """One rank's end of a group; make it with `meet`. Close it, also after an error."""

    def __init__(self, group: Any, store: Any, rank: int, world: int, where: str) -> None:
        self.rank = rank
        self.world = world
        self._group: Any = group
        self._store: Any = store
        self._where = where

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` by its sum over all ranks, in place; every rank gets the same bits.

        Raises `TransportError` when a peer is gone or the timeout passes.
        """
        self._run("all-reduce", lambda group: group.allreduce([tensor]))

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Overwrite `tensor` in place with that of rank `source`; raises `TransportError`."""
        options = _c10d.BroadcastOptions()
        options.rootRank = source
        self._run("broadcast", lambda group: group.broadcast([tensor], options))

    def all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor) -> None:
        """Overwrite `outputs[r]` with the tensor of rank r, of the same shape everywhere; raises
        `TransportError`.
        """
        self._run("all-gather", lambda group: group.allgather([outputs], [tensor]))

    def all_gather_into(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Overwrite the contiguous `output` with the tensors of all ranks, of one size, one behind
        the other; raises `TransportError`.
        """
        self._run("all-gather", lambda group: group._allgather_base(output, tensor))

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Overwrite `output` with the sum over all ranks of this rank's part of `tensor`, which is
        contiguous and as long as all parts; raises `TransportError`.
        """
        self._run("reduce-scatter", lambda group: group._reduce_scatter_base(output, tensor))

    def all_to_all(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
    ) -> None:
        """Send the r-th part of `tensor` to rank r, and put what rank r sends into the r-th part of
        `output`; parts lie along the first dimension and have the sizes given, 0 for nothing.

        Both tensors are contiguous. Raises `TransportError`.
        """
        self._run(
            "all-to-all",
            lambda group: group.alltoall_base(
                output, tensor, list(output_sizes), list(input_sizes)
            ),
        )

    def barrier(self) -> None:
        """Wait until every rank is here; raises `TransportError`."""
        self._run("barrier", lambda group: group.barrier())

    def require_open(self) -> None:
        """Raise `TransportError` if the group was closed or abandoned."""
        if self._group is None:
            raise TransportError(f"the group at {self._where} is closed; make a new one")

    def close(self) -> None:
        """Leave the group and free its sockets, in a moment; peers that still wait fail. Safe to
        call twice.
        """
        self._leave(lambda group: group.shutdown())

    def abandon(self) -> None:
        """Leave the group from another thread than the one that may wait in it.

        With NCCL that one fails at once. With gloo it fails when a peer's process ends or has left
        too, or at the group's timeout, so its thread must be left behind.
        """
        self._leave(lambda group: group.abort())

    def _leave(self, leave: Callable[[Any], None]) -> None:
        held, self._group, self._store = [self._group], None, None

        def dispose() -> None:
            leave(held[0])
            held.clear()

        if held[0] is not None:
            # Sockets and threads take tens of milliseconds to end: the caller cannot wait.
            threading.Thread(target=dispose, name="group-disposal").start()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, what: str, start: Callable[[Any], Any]) -> None:
        group = self._group
        if group is None:
            raise TransportError(f"{what}: the group at {self._where} is closed; make a new one")
        try:
            start(group).wait()
        except RuntimeError as error:
            del group  # or whoever keeps the error would keep it
            raise TransportError(
                f"{what}: rank {self.rank} of {self.world} at {self._where} lost its peers"
                f" ({error}); close the group and make a new one"
            ) from error.with_traceback(None)


def listen(host: str, port: int = 0) -> socket.socket:
    """A listening socket for the store of a group to come; with port 0 the system picks a free
    port.

    Rank 0 calls it, tells its peers the port, and hands the socket to `serve_store`. Raises
    `AddressInUse`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise AddressInUse(
            f"{host}:{port} cannot be listened on ({error.strerror}); choose another port"
        ) from error


def serve_store(host: str, listener: socket.socket, *, timeout_s: float) -> Any:
    """The store of a group to come, for rank 0, which takes over the `listener`: whoever comes is
    answered from now on, until the store is dropped.
    """
    port = listener.getsockname()[1]
    return _store(host, port, timeout_s, is_master=True, master_listen_fd=listener.detach())


def reach_store(host: str, port: int, *, timeout_s: float) -> Any:
    """Rank 0's store, for the other ranks; raises `TransportError` if it does not answer."""
    try:
        return _store(host, port, timeout_s, is_master=False)
    except RuntimeError as error:
        raise TransportError(
            f"rank 0's store at {host}:{port} did not answer in {timeout_s:g} s ({error}); check"
            " that rank 0 runs there and that this machine can reach it"
        ) from error


def await_ranks(
    store: Any, rank: int, world: int, *, limit_s: float, require_wanted: Callable[[], None]
) -> None:
    """Say that this rank is ready, and wait until all are.

    Args:
        require_wanted: called once in a while; what it raises ends the wait.

    Raises `TransportError` if they are not within `limit_s`, or rank 0's store is gone.
    """
    names = [f"ready/{each}" for each in range(world)]
    deadline = monotonic() + limit_s
    try:
        store.set(names[rank], "")
        while not store.check(names):
            require_wanted()
            if monotonic() >= deadline:
                missing = [each for each, name in enumerate(names) if not store.check([name])]
                raise TransportError(
                    f"rank {rank} of {world} was ready, but not ranks {missing} within"
                    f" {limit_s:g} s; see their logs"
                )
            with contextlib.suppress(_c10d.DistStoreError):  # not yet
                store.wait(names, _LOOK)
    except RuntimeError as error:
        raise TransportError(
            f"rank {rank} of {world} lost the store of its group ({error}); have rank 0 begin again"
        ) from error


def _store(host: str, port: int, timeout_s: float, **how: Any) -> Any:
    timeout = timedelta(seconds=timeout_s)
    return _c10d.TCPStore(host, port, None, timeout=timeout, wait_for_workers=False, **how)


def meet(
    rank: int,
    world: int,
    store: Any,
    where: str,
    *,
    connect_s: float,
    timeout_s: float,
    host: str = "127.0.0.1",
    backend: Backend = "gloo",
) -> Group:
    """Join a group whose ranks meet in `store`, a store of torch.distributed that they share
    already; blocks as long as the store does, and then five times `connect_s` at most: Gloo tries
    five times for so long to reach a peer that has said where it is.

    `where` names the group in errors, `host` is this rank's own address, `timeout_s` bounds every
    later collective. Raises `TransportError`.
    """
    try:
        timeout = timedelta(seconds=timeout_s)
        # A peer that was told of another group since is not waited for.
        connect = min(timeout, timedelta(seconds=connect_s))
        group = _process_group(backend, store, rank, world, timeout, connect, _own_address(host, 1))
    except (RuntimeError, OSError) as error:
        raise TransportError(
            f"rank {rank} of {world} could not join {where} ({error})"
        ) from error.with_traceback(None)  # or whoever keeps the error would keep the sockets
    return Group(group, store, rank, world, where)


def _process_group(
    backend: Backend,
    store: Any,
    rank: int,
    world: int,
    timeout: timedelta,
    connect: timedelta,
    own_address: str,
) -> Any:
    if backend == "nccl":
        nccl = _c10d.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return _c10d.ProcessGroupNCCL(store, rank, world, nccl)
    gloo = _c10d.ProcessGroupGloo._Options()
    gloo._timeout = connect
    gloo._devices = [_c10d.ProcessGroupGloo.create_device(hostname=own_address)]
    group = _c10d.ProcessGroupGloo(store, rank, world, gloo)
    group.set_timeout(timeout)
    return group


def _own_address(host: str, port: int) -> str:
    """The local address that packets to `host` leave from; asks the routing table only, sends
    nothing.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
