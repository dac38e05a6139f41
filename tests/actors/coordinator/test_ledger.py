"""The ledger: what is written of workers, and on whose word."""

from __future__ import annotations

from typing import Any

from spotlight.actors.coordinator.ledger import Ledger
from spotlight.actors.protocol import WorkerRefs, WorkerReport
from spotlight.actors.runtime import ActorRef

LEADER, OTHER = ActorRef("somewhere", "leader", 1), ActorRef("elsewhere", "leader", 1)


class Book:
    """A ledger with one worker, and what it wrote."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.problems: list[tuple[str, str]] = []
        self.ledger = Ledger(self._record)
        self.ledger.add("n", "spot", [WorkerRefs("n/0", 1, *[LEADER] * 3)])

    def _record(self, event: str, **fields: Any) -> None:
        if event == "worker_cannot_serve":
            self.problems.append((fields["worker"], fields["reason"]))
            return
        assert (event, fields["node"], fields["pool"]) == ("worker_state", "n", "spot")
        self.states.append((fields["worker"], fields["state"]))


def alone(worker: str) -> tuple[str, int]:
    return worker, 1


def test_a_state_is_written_when_it_changes_and_its_detail_is_not() -> None:
    book = Book()
    for detail in ("first", "second"):
        book.ledger.note(WorkerReport("n/0", 1, state="rollout", detail=detail))
    assert book.states == [("n/0", "starting"), ("n/0", "rollout")]
    (status,) = book.ledger.statuses(alone)
    assert (status.state, status.detail, status.leader, status.members) == (
        "rollout",
        "second",
        "",
        1,
    )


def test_a_status_says_who_leads_a_group_of_several() -> None:
    (status,) = Book().ledger.statuses(lambda worker: ("n/1", 2))
    assert (status.leader, status.members) == ("n/1", 2)


def test_the_time_of_a_worker_ends_when_it_is_gone() -> None:
    book = Book()
    book.ledger.remove(["n/0", "n/9"])
    book.ledger.note(WorkerReport("n/0", 1, state="idle"))
    assert book.states == [("n/0", "starting"), ("n/0", "gone")]
    assert len(book.ledger) == 0


def test_only_its_leader_says_what_a_worker_does() -> None:
    ledger = Book().ledger
    assert ledger.is_spoken_for("n/0", LEADER)
    assert not ledger.is_spoken_for("n/0", OTHER)
    assert not ledger.is_spoken_for("n/0", None)
    assert ledger.is_spoken_for("n/9", OTHER), "it is gone, so that nothing is noted"


def test_what_keeps_a_worker_from_work_is_written_once() -> None:
    book = Book()
    for reason in ("no model", "no model", "", "no model"):
        book.ledger.note(WorkerReport("n/0", 1, cannot_serve=reason))
    assert book.problems == [("n/0", "no model")] * 2
