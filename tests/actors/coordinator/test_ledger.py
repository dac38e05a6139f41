"""The ledger: what is written of workers, and on whose word."""

from __future__ import annotations

from spotlight.actors.coordinator.tenant.ledger import Ledger
from spotlight.actors.protocol import WorkerRefs, WorkerReport
from spotlight.actors.runtime import ActorRef
from spotlight.record.run_events import RunEvent, WorkerCannotServe, WorkerStateBegan

LEADER, OTHER = ActorRef("somewhere", "leader", 1), ActorRef("elsewhere", "leader", 1)


class Book:
    """A ledger with one worker, and what it wrote."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.problems: list[tuple[str, str]] = []
        self.scored: list[float] = []
        self.scoring_s = 0.0
        self.ledger = Ledger(self._record, lambda worker: self.scoring_s)
        self.ledger.add("n", "spot", [WorkerRefs("n/0", 1, *[LEADER] * 3)])

    def _record(self, event: RunEvent) -> None:
        if isinstance(event, WorkerCannotServe):
            self.problems.append((event.worker, event.reason))
            return
        assert isinstance(event, WorkerStateBegan)
        assert (event.node, event.pool) == ("n", "spot")
        self.states.append((event.worker, event.state))
        self.scored.append(event.scoring_s)


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
    assert ledger.may_report("n/0", LEADER)
    assert not ledger.may_report("n/0", OTHER)
    assert not ledger.may_report("n/0", None)
    assert ledger.may_report("n/9", OTHER), "it is gone, so that nothing is noted"


def test_what_keeps_a_worker_from_work_is_written_once() -> None:
    book = Book()
    for reason in ("no model", "no model", "", "no model"):
        book.ledger.note(WorkerReport("n/0", 1, cannot_serve=reason))
    assert book.problems == [("n/0", "no model")] * 2


def test_scoring_beside_a_state_is_written_with_the_next_one() -> None:
    book = Book()
    book.ledger.note(WorkerReport("n/0", 1, state="rollout"))
    book.scoring_s = 1.5
    book.ledger.note(WorkerReport("n/0", 1, state="idle"))
    book.scoring_s = 0.25
    book.ledger.remove(["n/0"])
    assert book.states[1:] == [("n/0", "rollout"), ("n/0", "idle"), ("n/0", "gone")]
    assert book.scored == [0.0, 0.0, 1.5, 0.25]
