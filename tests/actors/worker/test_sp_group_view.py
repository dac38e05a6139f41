"""What a leader knows of its SP group."""

from __future__ import annotations

from spotlight.actors.protocol.down import GroupPlan, Seat
from spotlight.actors.protocol.up import WorkerReport
from spotlight.actors.runtime import ActorRef
from spotlight.actors.worker.sp_group_view import SPGroupView

_NOTHING = (frozenset[int](), frozenset[int]())


def _seat(worker: str) -> Seat:
    ref = ActorRef(f"memory://{worker}", "leader", 1)
    return Seat(worker, ref, ref)


def _plan(epoch: int, *workers: str) -> GroupPlan:
    return GroupPlan(epoch, tuple(map(_seat, workers)), ring=1, at_once=False)


def _formed(epoch: int) -> WorkerReport:
    return WorkerReport("a", 1, group=epoch, formed=True)


def _holds(
    worker: str, epoch: int, rollout: tuple[int, ...], evaluation: tuple[int, ...]
) -> WorkerReport:
    return WorkerReport(worker, 1, rollout=rollout, evaluation=evaluation, group=epoch)


def test_a_worker_that_was_told_nothing_is_alone_and_serves_what_it_holds() -> None:
    standing = SPGroupView("a")
    assert (standing.epoch, standing.first, standing.followers) == (0, None, ())
    assert standing.serves({1, 2}, {2}) == ({1, 2}, {2})


def test_a_group_serves_nothing_before_it_has_formed() -> None:
    standing = SPGroupView("a")
    assert standing.plan(_plan(1, "a"))
    assert standing.serves({1}, set()) == _NOTHING
    standing.note_member(_formed(1))
    assert standing.serves({1}, set()) == ({1}, frozenset())


def test_a_group_serves_what_all_its_members_hold() -> None:
    standing = SPGroupView("a")
    standing.plan(_plan(1, "a", "b", "c"))
    standing.note_member(_formed(1))
    assert standing.note_follower(_holds("b", 1, (1, 2, 3), (1, 2)), _seat("b").leader)
    assert standing.serves({1, 2}, {2}) == _NOTHING, "c has not said anything"
    assert standing.note_follower(_holds("c", 1, (2, 3), (2,)), _seat("c").leader)
    assert standing.serves({1, 2}, {2}) == ({2}, {2})


def test_a_follower_serves_nothing_and_knows_its_leader() -> None:
    standing = SPGroupView("b")
    standing.plan(_plan(1, "a", "b"))
    standing.note_member(_formed(1))
    assert standing.first == _seat("a")
    assert standing.followers == ()
    assert standing.serves({1}, {1}) == _NOTHING


def test_an_old_order_changes_nothing() -> None:
    standing = SPGroupView("a")
    assert standing.plan(_plan(5, "a", "b"))
    assert not standing.plan(_plan(4, "a"))
    assert not standing.plan(_plan(5, "a"))
    assert (standing.epoch, standing.followers) == (5, ("b",))


def test_what_belongs_to_an_old_epoch_changes_nothing() -> None:
    standing = SPGroupView("a")
    standing.plan(_plan(1, "a", "b"))
    standing.plan(_plan(2, "a", "b"))
    standing.note_member(_formed(1))
    assert not standing.note_follower(_holds("b", 1, (1,), ()), _seat("b").leader)
    assert not standing.formed
    standing.note_member(_formed(2))
    assert standing.serves({1}, set()) == _NOTHING


def test_a_stranger_cannot_say_what_the_group_holds() -> None:
    standing = SPGroupView("a")
    standing.plan(_plan(1, "a", "b"))
    assert not standing.note_follower(_holds("x", 1, (1,), ()), _seat("x").leader)


def test_a_group_that_failed_serves_nothing_until_another_has_formed() -> None:
    standing = SPGroupView("a")
    standing.plan(_plan(1, "a"))
    standing.note_member(_formed(1))
    broke = WorkerReport("a", 1, group=1, formed=False, failure="a collective broke")
    standing.note_member(broke)
    assert standing.serves({1}, set()) == _NOTHING
    standing.plan(_plan(2, "a"))
    standing.note_member(_formed(2))
    assert standing.serves({1}, set()) == ({1}, frozenset())


def test_what_followers_held_is_forgotten_with_the_group() -> None:
    standing = SPGroupView("a")
    standing.plan(_plan(1, "a", "b"))
    standing.note_member(_formed(1))
    standing.note_follower(_holds("b", 1, (1,), ()), _seat("b").leader)
    standing.plan(_plan(2, "a", "b"))
    standing.note_member(_formed(2))
    assert standing.serves({1}, set()) == _NOTHING
