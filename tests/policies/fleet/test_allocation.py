"""Which job each node works for, rule by rule."""

from __future__ import annotations

import pytest

from spotlight.policies.fleet.allocation import Allocation, Borrower, Lend, Lendable, Recall
from spotlight.timings import SharingTimings

TIMINGS = SharingTimings()
QUANTUM_S = TIMINGS.quantum_s


def job(
    name: str,
    weight: float = 1.0,
    order: int = 0,
    ranks: int = 0,
    trains_on: str = "",
    priority: int = 0,
    load_s: float = 0.0,
) -> Borrower:
    return Borrower(name, weight, priority, order, ranks, frozenset(trains_on.split()), load_s)


def spot(
    name: str,
    tenant: str = "",
    next: str | None = None,
    workers: int = 1,
    may_be_lent: bool = True,
    model_of: str = "",
) -> Lendable:
    return Lendable(name, "spot", workers, tenant, next, may_be_lent, model_of)


def reserved(name: str, tenant: str = "", next: str | None = None, model_of: str = "") -> Lendable:
    return Lendable(name, "reserved", 1, tenant, next, True, model_of)


def decide(*what: Borrower | Lendable) -> list[Lend | Recall]:
    """What is decided first of all."""
    return at(Allocation(TIMINGS), 0.0, *what)


def at(allocation: Allocation, now: float, *what: Borrower | Lendable) -> list[Lend | Recall]:
    borrowers = [each for each in what if isinstance(each, Borrower)]
    return allocation.decide(now, borrowers, [each for each in what if isinstance(each, Lendable)])


def receivers(steps: list[Lend | Recall]) -> list[str]:
    return sorted(step.tenant if isinstance(step, Lend) else step.next for step in steps)


def test_without_borrowers_nothing_is_lent() -> None:
    assert decide(spot("s0"), reserved("r0")) == []


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_who_borrows_alone_gets_every_node(weight: float) -> None:
    steps = decide(job("a", weight), spot("s0"), reserved("r0"), spot("s1", "a"))
    assert steps == [Lend("s0", "a"), Lend("r0", "a")]


def test_what_may_not_be_lent_is_left_alone() -> None:
    assert decide(job("a"), spot("s0", may_be_lent=False)) == []
    assert decide(job("a"), job("b"), spot("s0", "a", "c", may_be_lent=False)) == []


def test_a_node_whose_tenant_borrows_no_more_is_not_free_yet() -> None:
    assert decide(job("a"), spot("s0", "ended")) == []


def test_free_nodes_are_shared_by_weight() -> None:
    nodes = [spot(f"s{number}") for number in range(6)]
    steps = decide(job("a", 1.0), job("b", 2.0, order=1), *nodes)
    assert receivers(steps) == ["a", "a", "b", "b", "b", "b"]


def test_of_equals_whoever_began_first_gets_a_free_node() -> None:
    assert decide(job("b", order=2), job("a", order=1), spot("s0")) == [Lend("s0", "a")]


def test_a_free_node_goes_to_whom_most_is_owed() -> None:
    allocation = Allocation(TIMINGS)
    both = job("a"), job("b", order=1)
    at(allocation, 0.0, *both, spot("s0", "a"))
    assert at(allocation, 60.0, *both, spot("s0", "a"), spot("s1")) == [Lend("s1", "b")]
    at(allocation, 60.0, *both, spot("s0", "a"), spot("s1", "b"))
    assert allocation.owed("b") == -allocation.owed("a") == 30.0
    assert at(allocation, 70.0, *both, spot("s0")) == [Lend("s0", "b")]


def test_several_free_nodes_do_not_all_go_to_whom_a_little_is_owed() -> None:
    allocation = Allocation(TIMINGS)
    both = job("a"), job("b", order=1)
    at(allocation, 0.0, *both, spot("s0", "a"))
    steps = at(allocation, 60.0, *both, *(spot(f"s{number}") for number in range(4)))
    assert receivers(steps) == ["a", "a", "b", "b"]


def test_of_weight_0_are_those_who_get_what_nobody_else_wants() -> None:
    zero, other = job("a", 0.0), job("b", 1.0, order=1)
    assert decide(zero, other, spot("s0"), spot("s1", "a")) == [Lend("s0", "b"), Recall("s1", "b")]


def test_several_of_weight_0_share_alike() -> None:
    assert decide(job("a", 0.0), job("b", 0.0, order=1), spot("s0"), spot("s1")) == [
        Lend("s0", "a"),
        Lend("s1", "b"),
    ]


def test_who_has_no_node_at_all_gets_one_before_a_quantum_ends() -> None:
    allocation = Allocation(TIMINGS)
    what = (job("a"), job("b", order=1), job("c", order=2))
    nodes = spot("s0", "a"), spot("s1", "a"), spot("s2", "b")
    assert at(allocation, 0.0, *what, *nodes) == []
    soon = TIMINGS.first_after_s - 0.1
    assert at(allocation, soon, *what, *nodes) == [], "its own may be on their way back"
    assert at(allocation, TIMINGS.first_after_s, *what, *nodes) == [Recall("s0", "c")]


def test_nobody_is_left_without_a_node_for_who_begins() -> None:
    allocation, what = Allocation(TIMINGS), (job("a"), job("b", order=1), spot("s0", "a"))
    assert at(allocation, 0.0, *what) == at(allocation, TIMINGS.first_after_s, *what) == []


def test_who_has_had_too_much_waits_although_it_has_no_node() -> None:
    allocation = Allocation(TIMINGS)
    both = job("a"), job("b", order=1)
    at(allocation, 0.0, *both, spot("s0", "a"), spot("s1", "a"), spot("s2", "b"))
    at(allocation, 60.0, *both, spot("s1", "b"), spot("s2", "b"))
    assert allocation.owed("a") < 0
    assert at(allocation, 61.0, *both, spot("s1", "b"), spot("s2", "b")) == []


def test_a_node_moves_after_a_quantum_if_half_of_one_is_owed() -> None:
    """One of three has two of four nodes: a third of a node is owed to both others."""
    allocation = Allocation(TIMINGS)
    what = job("a"), job("b", order=1), job("c", order=2), spot("s0", "a"), spot("s1", "a")
    what += spot("s2", "b"), spot("s3", "c")
    for now in 0.0, QUANTUM_S, 2 * QUANTUM_S - 1.0:
        assert at(allocation, now, *what) == []
    assert at(allocation, 2 * QUANTUM_S + 1.0, *what) == [Recall("s0", "b")]


def test_no_node_moves_for_a_small_debt_however_long_it_was_lent() -> None:
    allocation = Allocation(TIMINGS)
    nodes = [spot(f"s{number}", "a") for number in range(4)]
    at(allocation, 0.0, job("a"), *nodes)
    what = job("a"), job("b", order=1, ranks=1, trains_on="r0"), reserved("r0", "b"), *nodes
    began = 10 * QUANTUM_S
    assert at(allocation, began, *what) == []
    assert at(allocation, began + QUANTUM_S / 4 - 1.0, *what) == []
    moved = at(allocation, began + QUANTUM_S / 4 + 1.0, *what)
    assert moved == [Recall("s0", "b"), Recall("s1", "b")]


def test_no_node_moves_before_the_quantum_however_much_is_owed() -> None:
    allocation = Allocation(TIMINGS)
    both = job("a"), job("b", order=1)
    nodes = spot("s0", "a"), spot("s1", "a"), spot("s2", "a"), spot("s3", "a")
    at(allocation, 0.0, *both, reserved("r0", "b"), *nodes)
    moved = at(allocation, 100 * QUANTUM_S, *both, reserved("r0", "b"), *nodes)
    assert moved
    late = [spot(each.name + "again", "a") for each in nodes]
    allocation = Allocation(TIMINGS)
    at(allocation, 0.0, *both, reserved("r0", "b"), *nodes)
    assert at(allocation, 100 * QUANTUM_S, *both, reserved("r0", "b"), *late) == []
    assert allocation.owed("b") > QUANTUM_S


def test_the_quantum_grows_with_the_load_of_who_receives() -> None:
    allocation = Allocation(TIMINGS)
    both = job("a"), job("b", order=1, load_s=QUANTUM_S)
    what = (*both, spot("s0", "a"), spot("s1", "a"), spot("s2", "b"))
    at(allocation, 0.0, *what)
    assert at(allocation, 9.9 * QUANTUM_S, *what) == []
    assert at(allocation, 10.1 * QUANTUM_S, *what) == [Recall("s0", "b")]


def test_a_node_that_is_being_given_back_counts_for_who_gets_it() -> None:
    allocation = Allocation(TIMINGS)
    both = job("a"), job("b", order=1)
    what = (*both, spot("s0", "a", "b"), spot("s1", "a"))
    for now in 0.0, QUANTUM_S, 10 * QUANTUM_S:
        assert at(allocation, now, *what) == []
    assert allocation.owed("b") == 0.0


def test_a_node_whose_receiver_has_ended_is_taken_back() -> None:
    assert decide(job("a"), job("b", order=1), spot("s0", "a", "gone")) == [Lend("s0", "a")]


def test_a_node_whose_receiver_has_ended_goes_to_whom_much_is_owed() -> None:
    allocation = Allocation(TIMINGS)
    what = job("a"), job("b", order=1), spot("s0", "a"), spot("s1", "a"), spot("s2", "b")
    at(allocation, 0.0, *what)
    what = job("a"), job("b", order=1), spot("s0", "a", "gone"), spot("s2", "b")
    assert at(allocation, 2 * QUANTUM_S, *what) == [Recall("s0", "b")]


def test_after_a_restart_nodes_come_back_to_whom_they_worked_for() -> None:
    both = job("a"), job("b", order=1)
    nodes = [spot(f"s{number}", model_of="b") for number in range(3)]
    assert decide(*both, *nodes) == [Lend(f"s{number}", "b") for number in range(3)]


def test_a_loaded_model_does_not_outweigh_what_is_owed() -> None:
    allocation = Allocation(TIMINGS)
    both = job("a"), job("b", order=1)
    at(allocation, 0.0, *both, spot("s0", "a"), spot("s1", "a"), spot("s2", "b"))
    assert at(allocation, 2 * QUANTUM_S, *both, spot("s0", model_of="a")) == [Lend("s0", "b")]


def test_the_debt_of_who_ends_is_spread_over_those_that_go_on() -> None:
    allocation = Allocation(TIMINGS)
    three = job("a"), job("b", order=1), job("c", order=2)
    at(allocation, 0.0, *three, spot("s0", "a"), spot("s1", "b"))
    at(allocation, 300.0, job("a"), job("b", order=1), spot("s0", "a"), spot("s1", "b"))
    assert allocation.owed("a") == allocation.owed("b") == pytest.approx(0.0)
    assert allocation.owed("c") == 0.0


def test_who_begins_is_owed_nothing() -> None:
    allocation = Allocation(TIMINGS)
    both = job("a"), job("b", order=1)
    at(allocation, 0.0, *both, spot("s0", "a"), spot("s1", "a"))
    at(allocation, 300.0, *both, job("c", order=2), spot("s0", "a"), spot("s1", "a"))
    assert allocation.owed("c") == 0.0


def test_the_nodes_that_a_job_trains_on_are_never_recalled() -> None:
    allocation = Allocation(TIMINGS)
    both = job("a", ranks=2, trains_on="r0 r1"), job("b", 100.0, order=1, priority=9, ranks=1)
    what = (*both, reserved("r0", "a"), reserved("r1", "a"))
    assert at(allocation, 0.0, *what) == at(allocation, 100 * QUANTUM_S, *what) == []


def test_a_lost_reserved_node_is_replaced_at_once_by_one_that_nobody_holds() -> None:
    both = job("a", ranks=1, trains_on="r0"), job("b", order=1, ranks=1)
    assert decide(*both, reserved("r0", "a"), reserved("r1", "a")) == [Recall("r1", "b")]


def test_who_trains_is_given_free_reserved_nodes_before_others_give_theirs() -> None:
    both = job("a"), job("b", order=1, ranks=1)
    assert Lend("r1", "b") in decide(*both, reserved("r0", "a"), reserved("r1"))


def test_reserved_nodes_are_replaced_by_priority_and_then_order() -> None:
    first, second = job("a", ranks=1), job("b", order=1, ranks=1)
    assert decide(first, second, reserved("r0")) == [Lend("r0", "a")]
    urgent = job("b", order=1, ranks=1, priority=1)
    assert decide(first, urgent, reserved("r0")) == [Lend("r0", "b")]


def test_a_held_node_stays_held_before_its_trainer_is_known() -> None:
    allocation = Allocation(TIMINGS)
    both = job("a", ranks=1), job("b", order=1, ranks=1, priority=1)
    at(allocation, 0.0, job("a", ranks=1), reserved("r1"))
    assert at(allocation, 1.0, *both, reserved("r1", "a")) == []
    assert Lend("r0", "b") in at(allocation, 2.0, *both, reserved("r0"), reserved("r1", "a"))


def test_after_a_restart_each_trains_on_its_own_reserved_nodes_again() -> None:
    both = job("a", ranks=1), job("b", order=1, ranks=1, priority=1)
    steps = decide(*both, reserved("r0", model_of="a"), reserved("r1", model_of="b"))
    assert steps == [Lend("r0", "a"), Lend("r1", "b")]


def test_reserved_nodes_that_nobody_holds_are_shared_like_spot_ones() -> None:
    both = job("a", ranks=1, trains_on="r0"), job("b", order=1)
    steps = decide(*both, reserved("r0", "a"), reserved("r1"), reserved("r2"))
    assert steps == [Lend("r1", "a"), Lend("r2", "b")]
