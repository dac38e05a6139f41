import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
import torch

from spotlight.errors import AddressInUse, TransportError
from spotlight.transport.collectives import Group, await_ranks, listen, reach_store, serve_store
from spotlight_simulation.rank_groups import init_group
from tests.listening_sockets import listening_addresses, listening_sockets
from tests.warm_processes import warm_processes

TIMEOUT_S = 20.0


class BrokenGroup:
    """In place of torch's; says which thread frees it."""

    def __init__(self) -> None:
        self.freed_by: Future[threading.Thread] = Future()

    def barrier(self) -> None:
        raise RuntimeError("a peer is gone")

    def abort(self) -> None:
        """Nothing waits."""

    def __del__(self) -> None:
        self.freed_by.set_result(threading.current_thread())


def peer(port: int, orders: Connection) -> None:
    """Rank 1: takes part in what the test orders, one word at a time."""
    torch.set_num_threads(1)
    orders.send("ready")
    with init_group(1, 2, port=port, timeout_s=TIMEOUT_S) as group:
        tensor = torch.arange(4.0)
        for order in iter(orders.recv, "leave"):
            if order == "reduce":
                group.all_reduce(tensor)
            elif order == "broadcast":
                group.broadcast(tensor)
            elif order == "barrier":
                group.barrier()
            orders.send(tensor.tolist())


@pytest.fixture
def pair():
    """Starts a peer process and joins it as rank 0; returns (group, connection, process)."""
    context = warm_processes()
    started = []

    def start(timeout_s: float = TIMEOUT_S):
        ours, theirs = context.Pipe()
        listener = listen("127.0.0.1")
        arguments = (listener.getsockname()[1], theirs)
        process = context.Process(target=peer, args=arguments, daemon=True)
        process.start()
        theirs.close()
        assert ours.recv() == "ready"
        group = init_group(0, 2, timeout_s=timeout_s, listener=listener)
        started.append((group, ours, process))
        return started[-1]

    yield start
    for group, ours, process in started:
        group.close()
        ours.close()
        process.kill()
        process.join(10)
        process.close()


def test_ranks_reduce_broadcast_and_meet(pair):
    group, peer_orders, process = pair()
    tensor = torch.full((4,), 10.0)

    peer_orders.send("reduce")
    group.all_reduce(tensor)
    assert tensor.tolist() == peer_orders.recv() == [10.0, 11.0, 12.0, 13.0]

    peer_orders.send("broadcast")
    group.broadcast(tensor.fill_(7.0))
    assert peer_orders.recv() == [7.0] * 4

    peer_orders.send("barrier")
    group.barrier()
    peer_orders.recv()
    peer_orders.send("leave")
    process.join(10)
    assert process.exitcode == 0


def test_the_ranks_of_a_group_listen_at_their_own_address_alone(pair):
    before = listening_sockets(os.getpid())
    group, peer_orders, process = pair()
    peer_orders.send("barrier")
    group.barrier()
    peer_orders.recv()
    for pid in (os.getpid(), process.pid):
        assert listening_addresses(pid, but=before) == {"127.0.0.1"}


def test_a_killed_peer_is_an_error_not_a_hang(pair):
    group, _, process = pair()
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(TransportError, match="rank 0 of 2"):
        group.all_reduce(torch.ones(3))


def test_a_peer_that_is_silent_is_an_error_after_the_timeout(pair):
    group, _, _ = pair(timeout_s=1.0)
    with pytest.raises(TransportError, match="all-reduce"):
        group.all_reduce(torch.ones(3))


def test_a_missing_peer_is_an_error_after_the_timeout():
    with pytest.raises(TransportError, match="could not join"):
        init_group(0, 2, timeout_s=0.3)


def test_a_closed_group_refuses_work():
    group = init_group(0, 1, timeout_s=TIMEOUT_S)
    tensor = torch.ones(2)
    group.all_reduce(tensor)
    assert tensor.tolist() == [1.0, 1.0]
    group.close()
    group.close()
    with pytest.raises(TransportError, match="closed"):
        group.all_reduce(tensor)


def test_an_abandoned_group_is_freed_beside_whoever_keeps_its_error():
    broken = BrokenGroup()
    freed_by = broken.freed_by
    group = Group(broken, None, 0, 2, "here")
    del broken
    with pytest.raises(TransportError, match="a peer is gone") as kept:
        group.barrier()
    assert not freed_by.done()
    group.abandon()
    assert freed_by.result(TIMEOUT_S) is not threading.current_thread()
    assert "barrier" in str(kept.value)


def test_a_taken_port_is_named():
    with (
        listen("127.0.0.1") as taken,
        pytest.raises(AddressInUse, match=str(taken.getsockname()[1])),
    ):
        listen("127.0.0.1", taken.getsockname()[1])


def test_a_rank_outside_the_group_is_refused():
    with pytest.raises(ValueError, match="rank 2"):
        init_group(2, 2, timeout_s=TIMEOUT_S)


class NotWanted(Exception):
    """Somebody else trains."""


def store_at_rank_0() -> tuple[object, int]:
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]
    return serve_store("127.0.0.1", listener, timeout_s=TIMEOUT_S), port


def test_ranks_wait_until_the_slowest_is_ready():
    store, port = store_at_rank_0()
    other = reach_store("127.0.0.1", port, timeout_s=TIMEOUT_S)
    looks: list[None] = []
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(
            await_ranks, store, 0, 2, limit_s=TIMEOUT_S, require_wanted=lambda: looks.append(None)
        )
        while not looks:
            assert not waiting.done()
        await_ranks(other, 1, 2, limit_s=TIMEOUT_S, require_wanted=lambda: None)
        waiting.result(TIMEOUT_S)


def test_a_rank_that_is_not_wanted_any_more_waits_for_nobody():
    store, _ = store_at_rank_0()
    answers = iter([None])

    def require_wanted() -> None:
        if next(answers, NotWanted) is NotWanted:
            raise NotWanted

    with pytest.raises(NotWanted):
        await_ranks(store, 0, 2, limit_s=1e6, require_wanted=require_wanted)


def test_ranks_that_are_never_ready_are_named():
    store, _ = store_at_rank_0()
    with pytest.raises(TransportError, match=r"not ranks \[1, 2\] within 0.1 s"):
        await_ranks(store, 0, 3, limit_s=0.1, require_wanted=lambda: None)


def test_the_loss_of_rank_0_ends_the_wait():
    store, port = store_at_rank_0()
    other = reach_store("127.0.0.1", port, timeout_s=TIMEOUT_S)
    del store
    with pytest.raises(TransportError, match="lost the store"):
        await_ranks(other, 1, 2, limit_s=TIMEOUT_S, require_wanted=lambda: None)


def test_a_store_that_nobody_serves_is_named():
    with listen("127.0.0.1") as silent:
        port = silent.getsockname()[1]
    with pytest.raises(TransportError, match=f"127.0.0.1:{port} did not answer"):
        reach_store("127.0.0.1", port, timeout_s=0.5)
