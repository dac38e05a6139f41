"""Who takes part in a job, as nodes come and go."""

from __future__ import annotations

from typing import Any

from job_kit import STORE

from spotlight.actors.coordinator.tenant.roster import Roster
from spotlight.actors.protocol import NodeReport, WorkerRefs
from spotlight.actors.runtime import ActorRef

REF = ActorRef("somewhere", "actor", 1)


def worker(name: str, epoch: int) -> WorkerRefs:
    return WorkerRefs(name, epoch, REF, REF, REF)


def node(name: str, *epochs: int, pool: Any = "spot") -> NodeReport:
    workers = tuple(worker(f"{name}/{index}", epoch) for index, epoch in enumerate(epochs))
    return NodeReport(1, name, pool, REF, workers, STORE)


def epochs(workers: Any) -> list[int]:
    return [worker.epoch for worker in workers]


def reserved(*nodes: tuple[int, ...]) -> Roster:
    roster = Roster()
    for index, its in enumerate(nodes):
        roster.join(node(f"reserved-{index}", *its, pool="reserved"))
    return roster


def test_all_workers_of_a_new_node_come() -> None:
    came, went = Roster().join(node("a", 1, 2))
    assert (epochs(came), went) == ([1, 2], [])


def test_a_node_that_says_the_same_again_changes_nothing() -> None:
    roster = Roster()
    roster.join(node("a", 1, 2))
    assert roster.join(node("a", 1, 2)) == ([], [])


def test_a_worker_that_came_back_as_a_new_process_comes_and_goes() -> None:
    roster = Roster()
    roster.join(node("a", 1, 2))
    came, went = roster.join(node("a", 1, 3))
    assert (epochs(came), epochs(went)) == ([3], [2])


def test_a_node_that_leaves_is_forgotten_with_its_notice() -> None:
    roster = Roster()
    roster.join(node("a", 1))
    roster.leaving.add("a")
    assert roster.leave("a") == node("a", 1)
    assert roster.leave("a") is None
    roster.join(node("a", 2))
    assert roster.free_workers() == 1


def test_reserved_workers_can_train_in_the_order_of_their_names() -> None:
    roster = Roster()
    roster.join(node("b", 1, pool="reserved"))
    roster.join(node("a", 2, 3, pool="reserved"))
    roster.join(node("0-spot", 4, 5))
    ranks = roster.reserved()
    assert [(rank.node, rank.worker.epoch) for rank in ranks] == [("a", 2), ("a", 3), ("b", 1)]
    assert {rank.store for rank in ranks} == {STORE}


def test_workers_of_a_node_that_has_notice_cannot_begin_to_train() -> None:
    roster = reserved((1, 2), (3,))
    roster.leaving.add("reserved-0")
    assert [rank.worker.epoch for rank in roster.reserved()] == [3]


def test_workers_that_train_or_have_notice_are_not_free() -> None:
    roster = reserved((1, 2))
    roster.join(node("spot", 3, 4, 5))
    assert roster.free_workers() == 5
    roster.barred = frozenset({"reserved-0/0"})
    assert roster.free_workers() == 4
    roster.leaving.add("spot")
    assert roster.free_workers() == 1
