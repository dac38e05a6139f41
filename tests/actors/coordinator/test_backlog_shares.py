"""What nodes are told of the work that waits for them, and when."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fleet_kit import JobNodes
from hypothesis import given
from hypothesis import strategies as st
from job_kit import SETTINGS, STORE, job

from spotlight.actors.coordinator.tenant.backlog_shares import BacklogShares
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.protocol.down import Demand
from spotlight.actors.protocol.up import NodeNotice, NodeReport, WorkerRefs
from spotlight.actors.runtime import ActorRef
from spotlight.policies.requests.matching import Backlog
from spotlight.policies.step_times import StepTimes
from spotlight.preflight.checkpoint_facts import inspect_checkpoint

REF = ActorRef("somewhere", "actor", 1)


def node(name: str, workers: int, epoch: int = 1) -> NodeReport:
    refs = (WorkerRefs(f"{name}/{n}", epoch + n, REF, REF, REF) for n in range(workers))
    return NodeReport(1, name, "spot", REF, tuple(refs), STORE)


class Waiting:
    """As much of a table of requests as demands are made from."""

    def __init__(self) -> None:
        self.unsubmitted_previews = 0
        self.work: list[Backlog] = []

    def backlog(self) -> tuple[Backlog, ...]:
        return tuple(self.work)


class Office:
    """What demands are made from."""

    def __init__(self, *nodes: NodeReport, degree: Any = "auto") -> None:
        spec = job(sampler={"degree": degree}, exploration={"budget": "window"})
        self.nodes = JobNodes()
        for each in nodes:
            self.nodes.hear(each)
        self.table: Any = Waiting()
        self.profile = StepProfile("model", StepTimes())
        self.demands = BacklogShares(
            spec.degree,
            "job-1",
            inspect_checkpoint(spec.model),
            roster=self.nodes.tenant,
            table=self.table,
            profile=self.profile,
        )

    def wait(self, kind: Any, queued: int = 0, **leased: int) -> None:
        """That much waits."""
        self.table.work.append(Backlog(kind, SETTINGS, queued, leased))

    def told(
        self, *apart: str, seconds_left: float | None = None, again: bool = True
    ) -> dict[str, Demand]:
        due = self.demands.due(frozenset(apart), seconds_left, again=again)
        return {node.node: demand for node, demand in due}

    def batches(self, *apart: str) -> dict[str, dict[str, int]]:
        told = self.told(*apart)
        return {name: {c.kind: c.batches for c in d.classes} for name, d in told.items()}


def test_a_node_is_told_what_its_groups_should_be_good_for() -> None:
    office = Office(node("a", 4))
    office.wait("rollout", 10, a=2)
    office.wait("evaluation", 4)
    office.profile.measure(SETTINGS, 1, 2.0)
    office.profile.measure(SETTINGS, 2, 1.5)
    demand = office.told()["a"]
    rollout, evaluation = demand.classes
    assert (demand.job_id, demand.heads, demand.degree, demand.apart) == ("job-1", 4, None, ())
    assert (rollout.kind, rollout.batches, rollout.steps) == ("rollout", 3 + 2, SETTINGS.steps)
    assert (evaluation.kind, evaluation.batches) == ("evaluation", 1)
    assert sorted(rollout.step_s) == [1, 2, 4], "four heads cannot be divided among three"
    assert (rollout.step_s[1], rollout.step_s[2]) == (2.0, 1.5)
    assert 1.0 < rollout.step_s[4] < 1.5


def test_nodes_of_one_worker_are_told_nothing() -> None:
    office = Office(node("a", 1), node("b", 2), degree=2)
    office.wait("rollout", 12)
    assert set(office.told()) == {"b"}


def test_a_wish_and_those_who_train_are_passed_on() -> None:
    office = Office(node("a", 3), node("b", 3), degree=2)
    office.wait("rollout", 100)
    told = office.told("a/0", "a/2")
    assert {demand.degree for demand in told.values()} == {2}
    assert (told["a"].apart, told["b"].apart) == (("a/0", "a/2"), ())
    assert list(told["a"].classes[0].step_s) == [1], "one is left there"
    assert list(told["b"].classes[0].step_s) == [1, 2]


def test_a_node_has_its_own_leases_and_its_workers_share_of_the_rest() -> None:
    office = Office(node("a", 4), node("b", 2), node("c", 2), node("d", 8), node("e", 1))
    office.nodes.hear(msgspec.structs.replace(node("d", 8), notice=NodeNotice("user", None)))
    office.nodes.bar("b/1")
    office.wait("rollout", 32, b=3, d=1)
    assert office.batches() == {
        "a": {"rollout": 4},
        "b": {"rollout": 1 + 3},
        "c": {"rollout": 2},
        "d": {"rollout": 1},
    }


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 200))
def test_the_shares_add_up_to_what_waits(sizes: list[int], queued: int) -> None:
    office = Office(*(node(f"n{i}", size) for i, size in enumerate(sizes)))
    office.wait("rollout", queued)
    wide = sum(size for size in sizes if size > 1)
    total = -(-queued // SETTINGS.micro_batch)
    shared = sum(batches.get("rollout", 0) for batches in office.batches().values())
    exact = total * wide / sum(sizes)
    assert abs(shared - exact) <= len(sizes)
    if 1 not in sizes:
        assert shared == total


def test_previews_that_are_yet_to_be_submitted_wait_too() -> None:
    office = Office(node("a", 2), node("b", 2))
    office.wait("preview", 4, a=1)
    office.wait("evaluation", 8)
    office.table.unsubmitted_previews = 36
    assert office.batches() == {
        "a": {"preview": 5 + 1, "evaluation": 1},
        "b": {"preview": 5, "evaluation": 1},
    }


def test_previews_alone_have_a_deadline() -> None:
    office = Office(node("a", 2), node("b", 2))
    office.profile.measure(SETTINGS, 1, 2.0)
    office.wait("evaluation", 400)
    office.wait("preview", a=1)
    told = office.told(seconds_left=9.0)
    assert (told["a"].seconds_left, told["b"].seconds_left) == (9.0, None)


def test_a_guess_is_not_held_against_a_deadline() -> None:
    office = Office(node("a", 2))
    office.wait("preview", 400)
    demand = office.told(seconds_left=9.0)["a"]
    step_s = demand.classes[0].step_s
    assert demand.seconds_left is None
    assert step_s[1] == 1.0 and 0.5 < step_s[2] < 1.0, "only in proportion"


def test_without_work_there_are_no_classes() -> None:
    office = Office(node("a", 2))
    assert office.told()["a"].classes == ()


# --- when ---------------------------------------------------------------------------------------


def test_a_demand_is_told_again_only_when_it_changed_much() -> None:
    office = Office(node("a", 2), node("b", 2))
    office.wait("rollout", 100)
    assert set(office.told(again=False)) == {"a", "b"}
    assert office.told(again=False) == {}
    office.table.work.clear()
    office.wait("rollout", 90)
    assert office.told(again=False) == {}, "there is enough for everybody, as before"
    assert set(office.told(again=True)) == {"a", "b"}


@pytest.mark.parametrize(
    "change",
    ["scarce", "another kind", "a deadline", "a trainer", "a worker came back", "a worker more"],
)
def test_a_great_change_is_told_at_once(change: str) -> None:
    office = Office(node("a", 2))
    office.profile.measure(SETTINGS, 1, 2.0)
    office.wait("preview", 100)
    office.told()
    options: dict[str, Any] = {}
    apart = []
    match change:
        case "scarce":
            office.table.work.clear()
            office.wait("preview", 4)
        case "another kind":
            office.wait("rollout", 8)
        case "a deadline":
            options["seconds_left"] = 5.0
        case "a trainer":
            apart.append("a/1")
        case "a worker came back":
            office.nodes.hear(node("a", 2, epoch=7))
        case "a worker more":
            office.nodes.hear(node("a", 3))
    assert set(office.told(*apart, again=False, **options)) == {"a"}


def test_a_node_that_was_away_is_told_at_once() -> None:
    office = Office(node("a", 2))
    office.wait("rollout", 100)
    office.told()
    office.nodes.lose("a")
    assert office.told(again=False) == {}
    office.nodes.hear(node("a", 2))
    assert set(office.told(again=False)) == {"a"}
