"""Where the ranks of a group meet: entries that others set, and nothing that waits for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
import torch

from spotlight.errors import TransportError
from spotlight.transport.collectives import Group, meet
from spotlight.transport.rendezvous import Rendezvous
from tests.listening_sockets import listening_addresses, listening_sockets

LIMIT_S = 20.0


def nobody(key: str, value: bytes) -> None:
    """There are no others."""


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def when_waiting(future: Future[object]) -> None:
    """Once its thread runs, and most likely waits."""
    while not future.running():
        time.sleep(0.001)
    time.sleep(0.05)


def test_an_entry_that_is_there_already_is_had_at_once() -> None:
    rendezvous = Rendezvous(nobody, timeout_s=0.0)
    rendezvous.deliver("key", b"value")
    assert rendezvous.get("key") == b"value"
    rendezvous.wait(["key"])


def test_an_entry_that_is_set_here_is_handed_to_all_others() -> None:
    sent: list[tuple[str, bytes]] = []
    rendezvous = Rendezvous(lambda key, value: sent.append((key, value)), timeout_s=0.0)
    rendezvous.set("text", "value")
    rendezvous.set("bytes", b"\x00\xff")
    assert sent == [("text", b"value"), ("bytes", b"\x00\xff")]
    assert rendezvous.get("bytes") == b"\x00\xff"


def test_an_entry_that_comes_later_is_waited_for(threads: ThreadPoolExecutor) -> None:
    rendezvous = Rendezvous(nobody, timeout_s=LIMIT_S)
    waiting = threads.submit(rendezvous.get, "key")
    when_waiting(waiting)
    rendezvous.deliver("another", b"")
    rendezvous.deliver("key", b"value")
    assert waiting.result(LIMIT_S) == b"value"


def test_all_of_several_entries_are_waited_for(threads: ThreadPoolExecutor) -> None:
    rendezvous = Rendezvous(nobody, timeout_s=LIMIT_S)
    waiting = threads.submit(rendezvous.wait, ["a", "b"])
    rendezvous.deliver("b", b"")
    when_waiting(waiting)
    assert not waiting.done()
    rendezvous.deliver("a", b"")
    waiting.result(LIMIT_S)


def test_an_entry_that_does_not_come_is_an_error_that_names_it() -> None:
    rendezvous = Rendezvous(nobody, timeout_s=0.05)
    rendezvous.deliver("here", b"")
    with pytest.raises(TransportError, match=r"no there after 0\.05 s"):
        rendezvous.wait(["here", "there"])


def test_closing_wakes_who_waits_and_the_first_reason_counts(threads: ThreadPoolExecutor) -> None:
    rendezvous = Rendezvous(nobody, timeout_s=LIMIT_S)
    waiting = threads.submit(rendezvous.get, "key")
    when_waiting(waiting)
    rendezvous.close("a newer group was planned")
    with pytest.raises(TransportError, match="a newer group was planned"):
        waiting.result(LIMIT_S)
    rendezvous.close("another reason")
    with pytest.raises(TransportError, match="a newer group was planned"):
        rendezvous.get("key")


class Pair:
    """Two ranks in two threads of this process."""

    def __init__(self, threads: ThreadPoolExecutor, timeout_s: float = LIMIT_S) -> None:
        self.stores = [
            Rendezvous(lambda key, value: self.stores[1].deliver(key, value), timeout_s=timeout_s),
            Rendezvous(lambda key, value: self.stores[0].deliver(key, value), timeout_s=timeout_s),
        ]
        self.threads = threads

    def join(self, rank: int, timeout_s: float = LIMIT_S, connect_s: float = 2.0) -> Future[Group]:
        begin = partial(meet, timeout_s=timeout_s, connect_s=connect_s)
        return self.threads.submit(begin, rank, 2, self.stores[rank], "SP group 7")


def test_two_ranks_meet_and_move_tensors(threads: ThreadPoolExecutor) -> None:
    before = listening_sockets(os.getpid())
    pair = Pair(threads)
    groups = [joining.result(LIMIT_S) for joining in (pair.join(0), pair.join(1))]
    tensors = [torch.full((3,), 5.0), torch.zeros(3)]
    for moving in [
        threads.submit(group.broadcast, tensor)
        for group, tensor in zip(groups, tensors, strict=True)
    ]:
        moving.result(LIMIT_S)
    assert tensors[1].tolist() == [5.0] * 3
    assert listening_addresses(os.getpid(), but=before) <= {"127.0.0.1"}
    for group in groups:
        group.close()


def test_a_rank_whose_peer_never_comes_gives_up_and_names_what_is_missing(
    threads: ThreadPoolExecutor,
) -> None:
    joining = Pair(threads, timeout_s=0.2).join(0)
    with pytest.raises(TransportError, match=r"no .* after 0\.2 s"):
        joining.result(LIMIT_S)


def test_a_rank_that_waits_for_its_peer_is_woken_by_closing(threads: ThreadPoolExecutor) -> None:
    pair = Pair(threads)
    joining = pair.join(0)
    when_waiting(joining)
    pair.stores[0].close("a newer group was planned")
    with pytest.raises(TransportError, match="a newer group was planned"):
        joining.result(LIMIT_S)


def test_a_peer_that_leaves_ends_the_collective_of_the_other(threads: ThreadPoolExecutor) -> None:
    pair = Pair(threads)
    groups = [joining.result(LIMIT_S) for joining in (pair.join(0), pair.join(1))]
    stuck = threads.submit(groups[1].broadcast, torch.zeros(3))
    when_waiting(stuck)
    groups[0].close()
    with pytest.raises(TransportError, match="lost its peers"):
        stuck.result(LIMIT_S)
    groups[1].close()


def test_a_group_that_is_abandoned_fails_whoever_uses_it_next(threads: ThreadPoolExecutor) -> None:
    pair = Pair(threads)
    groups = [joining.result(LIMIT_S) for joining in (pair.join(0), pair.join(1))]
    stuck = threads.submit(groups[1].broadcast, torch.zeros(3))
    when_waiting(stuck)
    groups[1].abandon()
    with pytest.raises(TransportError, match="is closed"):
        groups[1].broadcast(torch.zeros(3))
    groups[0].close()
    with pytest.raises(TransportError):
        stuck.result(LIMIT_S)


def test_it_says_whether_entries_are_there() -> None:
    rendezvous = Rendezvous(lambda key, value: None, timeout_s=1.0)
    rendezvous.deliver("a", b"1")
    assert rendezvous.check(["a"])
    assert not rendezvous.check(["a", "b"])


class _Turncoat(Rendezvous):
    """Sets its own entries, and then does not come."""

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:
        raise TransportError("a newer group was planned")


def test_a_peer_that_changes_its_mind_is_not_waited_for_as_long_as_a_collective(
    threads: ThreadPoolExecutor,
) -> None:
    """It may be gone before it is reached, while it is, or after: often enough it is while."""
    for _ in range(5):
        pair = Pair(threads)
        pair.stores[1] = _Turncoat(pair.stores[0].deliver, timeout_s=LIMIT_S)
        joining = [pair.join(rank, timeout_s=8.0, connect_s=0.2) for rank in (0, 1)]
        with pytest.raises(TransportError, match="a newer group was planned"):
            joining[1].result(LIMIT_S)
        with suppress(TransportError):
            joining[0].result(LIMIT_S).close()


def test_connecting_in_time_leaves_collectives_their_own(
    threads: ThreadPoolExecutor,
) -> None:
    pair = Pair(threads)
    groups = [
        joining.result(LIMIT_S)
        for joining in (pair.join(0, connect_s=0.2), pair.join(1, connect_s=0.2))
    ]
    late = threads.submit(groups[0].all_reduce, torch.ones(1))
    time.sleep(1.0)
    assert not late.done()
    groups[1].all_reduce(torch.ones(1))
    late.result(LIMIT_S)
    for group in groups:
        group.close()
