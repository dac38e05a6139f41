"""What users are told of nodes: nothing vanishes, and of each how it is with it."""

from __future__ import annotations

from typing import Any

from job_kit import STORE

from spotlight import __version__
from spotlight.actors.coordinator.fleet import NodeTask
from spotlight.actors.coordinator.node_statuses import became_of, node_statuses
from spotlight.actors.protocol.up import NodeNotice, NodeReport
from spotlight.actors.protocol.users import NodeStatus
from spotlight.actors.runtime import ActorRef
from spotlight.policies.fleet.fleet_events import (
    Assigned,
    Heard,
    NoticeGiven,
    OutOfReach,
    PlansDue,
    Reported,
    TenantBegan,
    Terms,
)
from spotlight.policies.fleet.table import MOST_GONE, FleetTable


class Nodes:
    """A table of nodes and a clock."""

    def __init__(self) -> None:
        self.table: FleetTable[NodeReport, NodeTask] = FleetTable("coordinator")
        self.now = 0.0
        self._number = 0

    def say(self, name: str, **fields: Any) -> NodeReport:
        """A node reports."""
        self._number += 1
        at = ActorRef(f"memory://{name}", "node", 1)
        report = NodeReport(self._number, name, "spot", at, (), STORE, **fields)
        self.table.handle(Reported(report), self.now)
        return report

    def lose(self, name: str) -> None:
        """The process of a node is gone."""
        address = ActorRef(f"memory://{name}", "node", 1)
        self.table.handle(OutOfReach(address, "the connection was lost"), self.now)

    def of(self, name: str) -> NodeStatus:
        """The one node of that name."""
        (status,) = (one for one in node_statuses(self.table, self.now) if one.name == name)
        return status


def test_a_node_that_came_is_there_with_its_version_and_since_when() -> None:
    nodes = Nodes()
    nodes.say("a")
    nodes.now = 30.0
    nodes.say("a")
    status = nodes.of("a")
    assert (status.state, status.since_s, status.version) == ("there", 30.0, __version__)


def test_a_node_says_what_it_works_for() -> None:
    nodes = Nodes()
    report = nodes.say("a")
    for event in (
        TenantBegan("job", Terms()),
        Heard("job", report),
        Assigned("job", "a", NodeTask()),
    ):
        nodes.table.handle(event, nodes.now)
    assert nodes.of("a").job == "job"


def test_a_notice_counts_down_from_when_it_was_first_heard_of() -> None:
    nodes = Nodes()
    nodes.say("a")
    nodes.now = 10.0
    for _ in range(2):
        nodes.say("a", notice=NodeNotice("aws", 120.0))
        nodes.now += 20.0
    status = nodes.of("a")
    assert (status.state, status.detail) == ("has notice", "notice by aws")
    assert status.notice_left_s == 80.0
    assert status.since_s == 50.0, "it is there since it came"


def test_a_notice_that_does_not_say_when_has_no_seconds_left() -> None:
    nodes = Nodes()
    nodes.say("a", notice=NodeNotice("signal", None))
    assert nodes.of("a").notice_left_s is None


def test_a_users_notice_is_told_before_the_node_has_heard_of_it() -> None:
    nodes = Nodes()
    nodes.say("a")
    nodes.table.handle(NoticeGiven("a", 60.0, cancel=False), nodes.now)
    assert (nodes.of("a").state, nodes.of("a").notice_left_s) == ("has notice", 60.0)
    plan = nodes.table.nodes["a"].plan
    nodes.say("a", plan=plan, notice=NodeNotice("user", 60.0))
    assert nodes.of("a").state == "has notice"
    nodes.say("a", plan=plan)
    assert nodes.of("a").state == "there", "it has outlived the notice"


def test_a_notice_that_was_taken_back_is_none() -> None:
    nodes = Nodes()
    nodes.say("a")
    nodes.table.handle(NoticeGiven("a", 60.0, cancel=True), nodes.now)
    nodes.table.handle(PlansDue(), nodes.now)
    assert nodes.of("a").state == "there"


def test_a_node_leaves_and_has_left_when_its_process_is_gone() -> None:
    nodes = Nodes()
    nodes.say("a", notice=NodeNotice("aws", 120.0), left=True)
    assert nodes.of("a").state == "leaving"
    nodes.lose("a")
    assert (nodes.of("a").state, nodes.of("a").version) == ("left", "")


def test_a_node_that_is_lost_says_why_and_since_when_until_it_is_back() -> None:
    nodes = Nodes()
    nodes.say("a")
    nodes.now = 5.0
    nodes.lose("a")
    nodes.now = 8.0
    status = nodes.of("a")
    assert (status.state, status.detail, status.since_s) == ("lost", "the connection was lost", 3.0)
    nodes.say("a")
    assert nodes.of("a").state == "there"


def test_what_became_of_a_node_is_said_for_as_long_as_it_is_remembered() -> None:
    nodes = Nodes()
    nodes.say("a", notice=NodeNotice("aws", 120.0), left=True)
    nodes.say("b")

    def of(name: str) -> str:
        return became_of(name, nodes.table, nodes.now)

    assert of("a") == "it has given its work back, and is leaving"
    nodes.lose("a")
    nodes.lose("b")
    nodes.now += 40.0
    assert of("a") == "it left 40 s ago"
    assert of("b") == "it was lost 40 s ago (the connection was lost)"
    assert of("nobody") == ""


def test_of_many_nodes_that_went_the_latest_are_told() -> None:
    nodes = Nodes()
    for number in range(MOST_GONE + 3):
        nodes.say(f"n{number}")
        nodes.lose(f"n{number}")
    names = {status.name for status in node_statuses(nodes.table, nodes.now)}
    assert len(names) == MOST_GONE and "n2" not in names and f"n{MOST_GONE + 2}" in names
