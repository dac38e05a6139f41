"""The verbs of operators with nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from spotlight.actors.protocol.door import GuestList, KnownNode, KnownToken
from spotlight.actors.protocol.users import JobEntry, JobList, JobStatus, NodeStatus
from spotlight.cli.fleet import node_lines, node_table
from spotlight.errors import ConsentMissing, NotAllowed, UnknownNode
from tests.cli.stand_in import StandIn

OURS, OLD = "0.2.0 (fedcba98)", "0.1.0 (01234567)"
NODES = (
    NodeStatus("spot-10", "spot", 1, "there", 7200.0, "0.2.0", job="signs-3f9a"),
    NodeStatus("spot-9", "spot", 2, "has notice", 60.0, "0.2.0", "notice by gcp", 25.0, "x-1"),
    NodeStatus("res-0", "reserved", 4, "drained", 86_400.0, "0.2.0"),
    NodeStatus("gone", "spot", 1, "lost", 600.0, detail="it did not answer"),
)
GUESTS = GuestList(
    (
        KnownToken("k9s8tm", "node", "spot", 4, 60.0, software=OLD),
        KnownToken("p3q4r5", "submitter", None, 1, 60.0),
    ),
    (
        KnownNode("res-0", "reserved", "tok001", True),
        KnownNode("spot-9", "spot", "tok002", True),
        KnownNode("spot-10", "spot", "tok002", True),
        KnownNode("gone", "spot", "tok002", False),
        KnownNode("older", "spot", "tok002", False, software=OLD),
        KnownNode("out", "spot", "tok002", False, revoked=True),
    ),
    OURS,
)
JOBS = JobList((JobEntry("signs-3f9a", "signs", "job", "operator", "running", 1.0, 0, 0.0),))


class Coordinator(StandIn):
    """See `StandIn`. Only some may know of guests."""

    knows_guests = True

    async def jobs(self) -> JobList:
        return self.answer(("jobs",), JOBS)

    async def status(self) -> JobStatus:
        return self.answer(("status",), JobStatus(nodes=NODES))

    async def guests(self) -> GuestList:
        if not self.knows_guests:
            raise NotAllowed("x")
        return self.answer(("guests",), GUESTS)

    async def preempt(self, node: str, notice_s: float, **options: Any) -> None:
        self.answer(("preempt", node, notice_s, options), None)

    async def drain(self, node: str, **options: Any) -> None:
        self.answer(("drain", node, options), None)


@pytest.fixture
def coordinator(reached_by_join: Any) -> Coordinator:
    return reached_by_join(Coordinator())


def shown(width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(node_table(node_lines(NODES, GUESTS, {"signs-3f9a": "signs"})))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_nodes_are_listed_in_the_order_of_their_numbers() -> None:
    names = ["gone", "older", "out", "res-0", "spot-9", "spot-10", "(no name yet)"]
    assert [line.name for line in node_lines(NODES, GUESTS, {})] == names


def test_each_node_says_how_it_is() -> None:
    rows = [line.split("  ") for line in shown(200)]
    told = {row[0]: [cell.strip() for cell in row if cell.strip()][1:] for row in rows if row}
    assert told["spot-10"] == ["spot", "there", "1", "signs", "2 h", "0.2.0"]
    assert told["spot-9"] == ["spot", "has notice", "2", "x-1", "1 m", "0.2.0"]
    assert told["res-0"] == ["reserved", "drained", "4", "1 d", "0.2.0"]
    assert told["gone"] == ["spot", "lost", "1", "10 m"]
    assert told["older"] == ["spot", "away", OLD]
    assert told["out"] == ["spot", "revoked"]
    assert told["(no name yet)"] == ["spot", "not let in", OLD]


def test_notices_losses_and_misfits_are_told_below() -> None:
    lines = shown()
    for said in (
        "gone: it did not answer",
        "spot-9: notice by gcp, 25 s left",
        "older: its build does not fit the coordinator's",
        "(no name yet): its build does not fit the coordinator's",
    ):
        assert said in lines


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_nodes_fits_the_terminal(width: int) -> None:
    assert max(map(len, shown(width))) <= width


def test_nodes_are_there_as_json(coordinator: Coordinator, spotlight: Any) -> None:
    found = {node["name"]: node for node in json.loads(spotlight("nodes", "--json")[1])}
    assert (found["spot-10"]["job"], found["spot-10"]["token"]) == ("signs", "tok002")
    assert found["spot-9"]["notice_left_s"] == 25.0


def test_a_submitter_sees_who_is_there_and_not_who_may_come(
    coordinator: Coordinator, spotlight: Any
) -> None:
    coordinator.knows_guests = False
    code, out, err = spotlight("nodes")
    assert (code, err) == (0, "")
    assert "spot-9" in out and "older" not in out


@pytest.mark.parametrize(
    ("words", "asked", "said"),
    [
        (("drain", "a"), ("drain", "a", {"cancel": False, "yes": False}), "spotlight undrain a"),
        (("drain", "a", "--yes"), ("drain", "a", {"cancel": False, "yes": True}), "no more work"),
        (("undrain", "a"), ("drain", "a", {"cancel": True}), "a: takes work again"),
        (
            ("preempt", "a", "--notice", "90"),
            ("preempt", "a", 90.0, {"cancel": False, "yes": False}),
            "a: notice of 90 s given",
        ),
        (
            ("preempt", "a", "--cancel", "--yes"),
            ("preempt", "a", 30.0, {"cancel": True, "yes": True}),
            "a: notice withdrawn",
        ),
    ],
    ids=["drain", "drain --yes", "undrain", "preempt", "preempt --cancel"],
)
def test_a_node_is_told_what_to_do(
    coordinator: Coordinator,
    spotlight: Any,
    words: tuple[str, ...],
    asked: tuple[Any, ...],
    said: str,
) -> None:
    code, out, err = spotlight(*words)
    assert (code, err) == (0, "")
    assert said in out
    assert coordinator.asked == [asked]


@pytest.mark.parametrize("verb", ["drain", "preempt"])
def test_what_stops_a_job_is_asked_for_twice(
    coordinator: Coordinator, spotlight: Any, verb: str
) -> None:
    coordinator.error = ConsentMissing("without a `signs` cannot train; say --yes to go ahead")
    code, out, err = spotlight(verb, "a")
    assert (code, out) == (5, "")
    assert "without a `signs` cannot train; say --yes to go ahead" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["drain", "undrain", "preempt"])
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UnknownNode("there is no node `a`; there are: b"), 4, "there is no node `a`"),
        (NotAllowed("x"), 2, "does not allow that"),
    ],
    ids=["unknown", "role"],
)
def test_a_node_that_nobody_knows_is_named(
    coordinator: Coordinator, spotlight: Any, verb: str, error: Exception, code: int, said: str
) -> None:
    coordinator.error = error
    ended_with, out, err = spotlight(verb, "a")
    assert (ended_with, out) == (code, "")
    assert said in err and len(err.splitlines()) == 1
