"""What is wrong with workers, and when no reserved one is left that can work."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from job_kit import STORE

from spotlight.actors.coordinator.tenant.ledger import Ledger
from spotlight.actors.coordinator.tenant.roster import Roster
from spotlight.actors.coordinator.tenant.worker_troubles import WorkerTroubles, describe
from spotlight.actors.protocol import NodeReport, WorkerRefs, WorkerReport, WorkerTrouble
from spotlight.actors.runtime import ActorRef
from spotlight.record.run_events import RunEvent, WorkerFailed

REF = ActorRef("tcp://127.0.0.1:1", "actor", 1)
NO_MEMORY = "OutOfMemoryError: 41 GiB"


class Book:
    """The troubles of a job with some nodes."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self.roster = Roster()
        self.ledger = Ledger(self.events.append, lambda worker: 0.0)
        self.behind: set[str] = set()
        """Nodes that have not followed their latest plan."""
        self.troubles = WorkerTroubles(
            self.roster,
            self.ledger,
            self.events.append,
            lambda node: node.node not in self.behind,
        )

    def node(
        self,
        name: str,
        *workers: int,
        pool: Literal["reserved", "spot"] = "reserved",
        **fields: Any,
    ) -> None:
        """A node reports that these of its workers are up."""
        refs = tuple(WorkerRefs(f"{name}/{n}", n + 1, REF, REF, REF) for n in workers)
        report = NodeReport(1, name, pool, REF, refs, STORE, **fields)
        came, _ = self.roster.join(report)
        self.ledger.add(name, pool, came)
        self.troubles.note(report)

    def cannot_load(self, worker: str, reason: str = "no such file", **fields: Any) -> None:
        """A worker says so itself."""
        self.ledger.note(WorkerReport(worker, 1, cannot_serve=reason, **fields))

    def failed(self) -> list[tuple[str, int, bool]]:
        found = (event for event in self.events if isinstance(event, WorkerFailed))
        return [(event.worker, event.tries, event.given_up) for event in found]

    def why(self, ranks: int = 1) -> str:
        return self.troubles.why_nobody_can_train(ranks)


@pytest.fixture
def book() -> Book:
    return Book()


def given_up(worker: str) -> WorkerTrouble:
    return WorkerTrouble(worker, NO_MEMORY, 5, given_up=True)


def test_each_new_trouble_is_an_event_once(book: Book) -> None:
    first = WorkerTrouble("r/0", NO_MEMORY, 1)
    for _ in range(3):
        book.node("r", size=1, troubles=(first,))
    book.node("r", size=1, troubles=(given_up("r/0"),))
    assert book.failed() == [("r/0", 1, False), ("r/0", 5, True)]


def test_a_worker_that_is_tried_again_for_another_runner_has_failed_nothing_yet(
    book: Book,
) -> None:
    book.node("r", size=1, troubles=(WorkerTrouble("r/0", NO_MEMORY),))
    assert book.failed() == []


def test_the_status_names_those_of_nodes_and_those_that_stay_without_the_model(book: Book) -> None:
    book.node("r", 1, size=2, troubles=(given_up("r/0"),))
    book.cannot_load("r/1")
    assert [describe(each) for each in book.troubles.all] == [
        f"r/0 is given up after 5 tries: {NO_MEMORY}",
        "r/1: no such file",
    ]


def test_the_job_cannot_go_on_when_no_reserved_worker_is_left(book: Book) -> None:
    book.node("s", 0, pool="spot", size=1)
    book.node("r", 1, size=2, troubles=(given_up("r/0"),))
    assert book.why() == "", "one may work"
    book.cannot_load("r/1")
    assert book.why() == (
        f"no reserved worker can work: r/0 is given up after 5 tries: {NO_MEMORY}; r/1: no such"
        " file; fix that, then resume the run"
    )


def test_it_waits_for_a_worker_that_is_started_again(book: Book) -> None:
    book.node("r", size=2, troubles=(given_up("r/0"), WorkerTrouble("r/1", NO_MEMORY, 2)))
    assert book.why() == ""
    book.node("r", size=2, troubles=(given_up("r/0"),))
    assert book.why() == "", "it was killed and is about to start again"


def test_it_waits_for_a_worker_whose_process_ends(book: Book) -> None:
    book.node("r", 0, size=1)
    book.cannot_load("r/0", NO_MEMORY, ends=True)
    assert book.why() == ""


def test_it_waits_while_fewer_reserved_workers_are_there_than_train(book: Book) -> None:
    book.node("r", size=1, troubles=(given_up("r/0"),))
    assert book.why(ranks=2) == ""
    book.node("q", 0, size=1)
    assert book.why(ranks=2) == ""
    book.cannot_load("q/0")
    assert "q/0: no such file" in book.why(ranks=2)


def test_it_waits_for_a_node_that_has_yet_to_hear_of_another_runner(book: Book) -> None:
    book.node("r", size=1, troubles=(given_up("r/0"),))
    book.behind.add("r")
    assert book.why() == ""


def test_without_any_reserved_node_it_waits(book: Book) -> None:
    book.node("s", pool="spot", size=1, troubles=(given_up("s/0"),))
    assert book.why() == ""
