"""Who takes part in a job as nodes come and go, what is written down of it, and on whose word."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from fleet_world import OWN, Notice, Said, Task, Word, Worker

from spotlight.policies.fleet import fleet_events as event
from spotlight.policies.fleet import fleet_instructions as step
from spotlight.policies.fleet.fleet_rows import describe
from spotlight.policies.fleet.table import FleetTable
from spotlight.record.run_events import (
    NodeMustWait,
    NoticeReceived,
    NoticeWithdrawn,
    RunEvent,
    WorkerCannotServe,
    WorkerFailed,
)

NO_MEMORY = "OutOfMemoryError: 41 GiB"


@dataclass(frozen=True)
class Trouble:
    worker: str
    reason: str
    tries: int = 0
    given_up: bool = False


@dataclass(frozen=True)
class Troubled(Word):
    """A node that says what is wrong with its workers."""

    troubles: tuple[Trouble, ...] = ()  # type: ignore[assignment]


def word(name: str, *epochs: int, pool: str = "spot", **fields: object) -> Troubled:
    workers = tuple(Worker(f"{name}/{n}", epoch, f"leader {n}") for n, epoch in enumerate(epochs))
    said = Troubled(1, name, pool, f"process of {name}", workers)
    return replace(said, **fields)  # type: ignore[arg-type]


class Book:
    """A table with one job, and what follows from what it is told."""

    def __init__(self, ranks: int = 0) -> None:
        self.now = 0.0
        self.table: FleetTable[Troubled, Task] = FleetTable(OWN)
        self.table.handle(event.TenantBegan("job", event.Terms(ranks=ranks)), self.now)
        self.job = self.table.tenants["job"]

    def hear(self, said: Troubled, *, up_to_date: bool = True) -> list[step.Instruction]:
        """A node says so, and then the job takes it in."""
        self.table.handle(event.Reported(said), self.now)
        if up_to_date:
            said = replace(said, coordinator=OWN, plan=self.table.nodes[said.node].plan)
        found = self.table.handle(event.Heard("job", said), self.now)
        for each in found:
            if isinstance(each, step.NodeHeard):
                later = event.HeardOfNotice("job", each.node, each.has_news)
                return [*found[:-1], *self.table.handle(later, self.now)]
        return found

    def lose(self, name: str, *, announced: bool = False) -> list[step.Instruction]:
        lost = event.HeardOfLoss("job", name, "it is gone", announced)
        return self.table.handle(lost, self.now)

    def says(self, worker: str, **fields: object) -> list[step.Instruction]:
        said = replace(Said(worker, "idle"), **fields)  # type: ignore[arg-type]
        return self.table.handle(event.WorkerSaid("job", said), self.now)

    def why(self, ranks: int = 1) -> str:
        return self.table.why_nobody_can_train(self.job, ranks)


@pytest.fixture
def book() -> Book:
    return Book()


def events(found: list[step.Instruction]) -> list[RunEvent]:
    return [each.event for each in found if isinstance(each, step.RecordEvent)]


def states(found: list[step.Instruction]) -> list[tuple[str, str]]:
    return [(each.worker, each.state) for each in found if isinstance(each, step.StateBegan)]


def changes(found: list[step.Instruction]) -> list[step.Instruction]:
    kinds = step.AddWorkers, step.RemoveWorkers, step.SetLeaving, step.RevokeToken
    return [each for each in found if isinstance(each, kinds)]


# --- who is there ---


def test_all_workers_of_a_new_node_come(book: Book) -> None:
    found = book.hear(word("a", 1, 2))
    assert changes(found) == [step.RevokeToken("a"), step.AddWorkers("a", (1, 2))]
    assert found[-1] == step.NodeHeard("a", has_news=True)


def test_a_node_that_says_the_same_again_changes_nothing(book: Book) -> None:
    book.hear(word("a", 1, 2))
    assert book.hear(word("a", 1, 2)) == [step.NodeHeard("a", has_news=False)]


def test_a_worker_that_came_back_as_a_new_process_goes_and_comes(book: Book) -> None:
    book.hear(word("a", 1, 2))
    assert changes(book.hear(word("a", 1, 3))) == [
        step.RemoveWorkers(("a/1",), "its process ended", ended=True),
        step.AddWorkers("a", (3,)),
    ]


def test_a_node_that_comes_back_as_another_process_writes_with_another_token(book: Book) -> None:
    book.hear(word("a", 1))
    book.lose("a")
    assert step.RevokeToken("a") not in book.hear(word("a", 1)), "it was only out of reach"
    book.lose("a")
    book.table.handle(event.OutOfReach("process of a", "it is gone"), 0.0)
    assert step.RevokeToken("a") in book.hear(word("a", 2, scheduler="another"))


def test_a_node_that_left_after_a_notice_writes_no_more(book: Book) -> None:
    book.hear(word("a", 1))
    assert book.lose("a", announced=True)[0] == step.RevokeToken("a")
    assert changes(book.lose("b", announced=True)) == [step.RevokeToken("b")]


def test_a_spot_node_that_comes_and_goes_must_wait_and_is_told_of_once(book: Book) -> None:
    for _ in range(3):
        book.hear(word("a", 1))
        book.hear(word("r", 2, pool="reserved"))
        book.lose("a")
        book.lose("r")
    assert events(book.hear(word("a", 1))) == [NodeMustWait(node="a", seconds=2.0)]
    assert book.hear(word("a", 1)) == []
    book.hear(word("r", 2, pool="reserved"))
    assert list(book.job.nodes) == ["r"], "reserved nodes never wait"
    book.now = 2.0
    assert book.hear(word("a", 1))[-1] == step.NodeHeard("a", has_news=True)


def test_a_notice_and_its_withdrawal_are_written_once(book: Book) -> None:
    noticed = word("a", 1, notice=Notice())
    book.hear(word("a", 1))
    found = book.hear(noticed)
    assert events(found) == [NoticeReceived(node="a", source="cloud", lead_s=None)]
    assert changes(found) == [step.SetLeaving(("a/0",), leaving=True)]
    assert events(book.hear(noticed)) == []
    found = book.hear(word("a", 1))
    assert events(found) == [NoticeWithdrawn(node="a")]
    assert changes(found) == [step.SetLeaving(("a/0",), leaving=False)]


def test_a_worker_that_comes_while_its_node_has_notice_leaves_with_it(book: Book) -> None:
    book.hear(word("a", 1, notice=Notice()))
    assert changes(book.hear(word("a", 1, 2, notice=Notice()))) == [
        step.AddWorkers("a", (2,)),
        step.SetLeaving(("a/0", "a/1"), leaving=True),
    ]


def test_workers_of_a_node_that_has_notice_cannot_begin_to_train(book: Book) -> None:
    book.hear(word("r", 1, pool="reserved", notice=Notice()))
    book.hear(word("q", 2, pool="reserved"))
    book.hear(word("s", 3))
    assert [node.node for node in book.job.reserved_nodes()] == ["q"]


def test_workers_that_train_or_have_notice_are_not_free(book: Book) -> None:
    book.hear(word("r", 1, 2, pool="reserved"))
    book.hear(word("s", 3, 4, 5))
    assert book.job.free_workers() == 5
    book.table.handle(event.Barred("job", frozenset({"r/0"})), 0.0)
    assert book.job.free_workers_of("r") == ["r/1"]
    book.hear(word("s", 3, 4, 5, notice=Notice()))
    assert book.job.free_workers() == 1


# --- what a job cannot do without ---


def test_the_node_of_a_trainer_stays_with_its_job_while_nothing_is_computed() -> None:
    """Another job needs a reserved node: it gets the one on which nobody trains."""
    book = Book(ranks=1)
    for name in "rs":
        book.hear(word(name, 1, pool="reserved"))
    book.table.handle(event.Trains("job", frozenset({"s/0"})), book.now)
    book.table.handle(event.TenantBegan("other", event.Terms(ranks=1)), book.now)
    assert {name: row.next for name, row in book.table.nodes.items()} == {"r": "other", "s": None}


@pytest.mark.parametrize("trains", [True, False], ids=["as it trains", "as it rolls out"])
def test_a_job_cannot_train_without_the_last_of_its_reserved_workers(trains: bool) -> None:
    book = Book(ranks=1)
    book.hear(word("r", 1, pool="reserved"))
    book.hear(word("s", 2))
    book.table.handle(event.Barred("job", frozenset({"r/0"} if trains else ())), book.now)
    assert [book.table.cannot_train_without(name) for name in "rsx"] == ["job", "", ""]


def test_a_job_can_train_without_a_node_while_another_one_stays() -> None:
    book = Book(ranks=1)
    for name in ("q", "r"):
        book.hear(word(name, 1, pool="reserved"))
    assert book.table.cannot_train_without("r") == ""
    book.table.handle(event.Drained("q", cancel=False), book.now)
    assert book.table.cannot_train_without("r") == "job"


# --- plans ---


def test_a_node_without_the_spec_of_its_task_is_told_though_it_knows_the_plan(book: Book) -> None:
    book.hear(word("a", 1))
    book.table.handle(event.Assigned("job", "a", Task("job")), 0.0)
    book.table.handle(event.PlansDue(), 0.0)
    knows = word("a", 1, coordinator=OWN, plan=book.table.nodes["a"].plan)
    found = book.table.handle(event.Reported(knows), 0.0)
    assert found[-1] == step.AnswerWithPlan("a")
    found = book.table.handle(event.Reported(replace(knows, job_id="job")), 0.0)
    assert found[-1] == step.Acknowledge("a")


# --- what workers do ---


def test_a_state_is_written_when_it_changes_and_its_detail_is_not(book: Book) -> None:
    assert states(book.hear(word("a", 1))) == [("a/0", "starting")]
    assert states(book.says("a/0", state="rollout", detail="first")) == [("a/0", "rollout")]
    assert states(book.says("a/0", state="rollout", detail="second")) == []
    assert book.job.workers["a/0"].detail == "second"


def test_the_time_of_a_worker_ends_when_it_is_gone(book: Book) -> None:
    book.hear(word("a", 1))
    assert states(book.lose("a")) == [("a/0", "gone")]
    assert book.says("a/0", state="idle") == []
    assert book.job.workers == {}


def test_states_add_up_to_the_time_for_which_workers_were_there(book: Book) -> None:
    book.hear(word("a", 1))
    book.hear(word("r", 2, pool="reserved"))
    book.now = 3.0
    book.says("a/0", state="rollout")
    book.now = 10.0
    book.lose("a")
    spent = book.job.seconds_spent(15.0)
    assert spent["spot"] == {"starting": 3.0, "rollout": 7.0}
    assert spent["reserved"] == {"starting": 15.0}
    assert book.job.seconds_spent(16.0)["reserved"] == {"starting": 16.0}, "it goes on"


def test_only_its_leader_says_what_a_worker_does(book: Book) -> None:
    book.hear(word("a", 1))
    assert book.job.may_report("a/0", "leader 0")
    assert not book.job.may_report("a/0", "leader 1")
    assert not book.job.may_report("a/0", None)
    assert book.job.may_report("a/9", "leader 1"), "it is gone, so that nothing is noted"


def test_what_keeps_a_worker_from_work_is_written_once(book: Book) -> None:
    book.hear(word("a", 1))
    found = [
        each
        for reason in ("no model", "no model", "", "no model")
        for each in events(book.says("a/0", cannot_serve=reason))
    ]
    assert found == [WorkerCannotServe(worker="a/0", reason="no model")] * 2


# --- what is wrong with them ---


def given_up(worker: str) -> Trouble:
    return Trouble(worker, NO_MEMORY, 5, given_up=True)


def reserved(name: str, *epochs: int, size: int, troubles: tuple[Trouble, ...] = ()) -> Troubled:
    return word(name, *epochs, pool="reserved", size=size, troubles=troubles)


def test_each_new_trouble_is_an_event_once(book: Book) -> None:
    first = Trouble("r/0", NO_MEMORY, 1)
    found = [
        each
        for trouble in (first, first, given_up("r/0"))
        for each in events(book.hear(reserved("r", size=1, troubles=(trouble,))))
        if isinstance(each, WorkerFailed)
    ]
    assert [(each.tries, each.given_up) for each in found] == [(1, False), (5, True)]


def test_a_worker_that_is_tried_again_for_another_runner_has_failed_nothing_yet(
    book: Book,
) -> None:
    found = book.hear(reserved("r", size=1, troubles=(Trouble("r/0", NO_MEMORY),)))
    assert not any(isinstance(each, WorkerFailed) for each in events(found))


def test_the_status_names_those_of_nodes_and_those_that_stay_without_the_model(book: Book) -> None:
    book.hear(reserved("r", 2, size=2, troubles=(given_up("r/1"),)))
    book.says("r/0", cannot_serve="no such file")
    assert [describe(each) for each in book.job.troubles()] == [
        "r/0: no such file",
        f"r/1 is given up after 5 tries: {NO_MEMORY}",
    ]


def test_the_job_cannot_go_on_when_no_reserved_worker_is_left(book: Book) -> None:
    book.hear(word("s", 1))
    book.hear(reserved("r", 2, size=2, troubles=(given_up("r/1"),)))
    assert book.why() == "", "one may work"
    book.says("r/0", cannot_serve="no such file")
    assert book.why() == (
        f"no reserved worker can work: r/1 is given up after 5 tries: {NO_MEMORY}; r/0: no such"
        " file; fix that, then resume the run"
    )


def test_it_waits_for_a_worker_that_is_started_again(book: Book) -> None:
    again = given_up("r/0"), Trouble("r/1", NO_MEMORY, 2)
    book.hear(reserved("r", size=2, troubles=again))
    assert book.why() == ""
    book.hear(reserved("r", size=2, troubles=again[:1]))
    assert book.why() == "", "it was killed and is about to start again"


def test_it_waits_for_a_worker_whose_process_ends(book: Book) -> None:
    book.hear(reserved("r", 1, size=1))
    book.says("r/0", cannot_serve=NO_MEMORY, ends=True)
    assert book.why() == ""


def test_it_waits_while_fewer_reserved_workers_are_there_than_train(book: Book) -> None:
    book.hear(reserved("r", size=1, troubles=(given_up("r/0"),)))
    assert book.why(ranks=2) == ""
    book.hear(reserved("q", 1, size=1))
    assert book.why(ranks=2) == ""
    book.says("q/0", cannot_serve="no such file")
    assert "q/0: no such file" in book.why(ranks=2)


def test_it_waits_for_a_node_that_has_yet_to_hear_of_another_runner(book: Book) -> None:
    book.hear(reserved("r", size=1, troubles=(given_up("r/0"),)), up_to_date=False)
    assert book.why() == ""


def test_without_any_reserved_node_it_waits(book: Book) -> None:
    book.hear(word("s", troubles=(given_up("s/0"),)))
    assert book.why() == ""
