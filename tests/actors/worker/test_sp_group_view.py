"""What a leader knows of its SP group."""

from __future__ import annotations

from spotlight.actors.protocol import FormGroup, GroupFailed, HeldVersions, Seat
from spotlight.actors.runtime import ActorRef
from spotlight.actors.worker.sp_group_view import SPGroupView

_NOTHING = (frozenset[int](), frozenset[int]())


def _seat(worker: str) -> Seat:
    ref = ActorRef(f"memory://{worker}", "leader", 1)
    return Seat(worker, 1, ref, ref)


def _order(epoch: int, *workers: str) -> FormGroup:
    return FormGroup(epoch, tuple(map(_seat, workers)), ring=1, at_once=False)


def test_a_worker_that_was_told_nothing_is_alone_and_serves_what_it_holds() -> None:
    standing = SPGroupView("a")
    assert (standing.epoch, standing.first, standing.followers) == (0, None, ())
    assert standing.serves({1, 2}, {2}) == ({1, 2}, {2})


def test_a_group_serves_nothing_before_it_has_formed() -> None:
    standing = SPGroupView("a")
    assert standing.take(_order(1, "a"))
    assert standing.serves({1}, set()) == _NOTHING
    assert standing.form(1)
    assert standing.serves({1}, set()) == ({1}, frozenset())


def test_a_group_serves_what_all_its_members_hold() -> None:
    standing = SPGroupView("a")
    standing.take(_order(1, "a", "b", "c"))
    standing.form(1)
    assert standing.hear(HeldVersions(1, "b", (1, 2, 3), (1, 2)), _seat("b").leader)
    assert standing.serves({1, 2}, {2}) == _NOTHING, "c has not said anything"
    assert standing.hear(HeldVersions(1, "c", (2, 3), (2,)), _seat("c").leader)
    assert standing.serves({1, 2}, {2}) == ({2}, {2})


def test_a_follower_serves_nothing_and_knows_its_leader() -> None:
    standing = SPGroupView("b")
    standing.take(_order(1, "a", "b"))
    standing.form(1)
    assert standing.first == _seat("a")
    assert standing.followers == ()
    assert standing.serves({1}, {1}) == _NOTHING


def test_an_old_order_changes_nothing() -> None:
    standing = SPGroupView("a")
    assert standing.take(_order(5, "a", "b"))
    assert not standing.take(_order(4, "a"))
    assert not standing.take(_order(5, "a"))
    assert (standing.epoch, standing.followers) == (5, ("b",))


def test_what_belongs_to_an_old_epoch_changes_nothing() -> None:
    standing = SPGroupView("a")
    standing.take(_order(1, "a", "b"))
    standing.take(_order(2, "a", "b"))
    assert not standing.form(1)
    assert not standing.hear(HeldVersions(1, "b", (1,), ()), _seat("b").leader)
    assert not standing.fail(GroupFailed(1, "late"))
    assert standing.failure is None
    assert not standing.formed
    standing.form(2)
    assert standing.serves({1}, set()) == _NOTHING


def test_a_stranger_cannot_say_what_the_group_holds() -> None:
    standing = SPGroupView("a")
    standing.take(_order(1, "a", "b"))
    assert not standing.hear(HeldVersions(1, "x", (1,), ()), _seat("x").leader)


def test_a_group_that_failed_serves_nothing_until_another_has_formed() -> None:
    standing = SPGroupView("a")
    standing.take(_order(1, "a"))
    standing.form(1)
    failure = GroupFailed(1, "a collective broke")
    assert standing.fail(failure)
    assert standing.failure == failure
    assert standing.serves({1}, set()) == _NOTHING
    standing.take(_order(2, "a"))
    assert standing.failure is None
    standing.form(2)
    assert standing.serves({1}, set()) == ({1}, frozenset())


def test_what_followers_held_is_forgotten_with_the_group() -> None:
    standing = SPGroupView("a")
    standing.take(_order(1, "a", "b"))
    standing.form(1)
    standing.hear(HeldVersions(1, "b", (1,), ()), _seat("b").leader)
    standing.take(_order(2, "a", "b"))
    standing.form(2)
    assert standing.serves({1}, set()) == _NOTHING
