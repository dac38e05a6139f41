"""The table of requests and saved steps: what is acknowledged is kept, goes with the next grant,
and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from table_rig import SETTINGS, STEPS, Rig, ids, images, request, requests, saved_steps, steps

from spotlight.policies.requests.instructions import Answer


def lose(rig: Rig) -> None:
    rig.lose("first")


def expire(rig: Rig) -> None:
    rig.wait(10)
    rig.report("next")
    rig.wait(10)


def give_back(rig: Rig) -> None:
    rig.leave("first")
    rig.give_back(rig.last("first"))


def fail(rig: Rig) -> None:
    rig.fail(rig.last("first"))


def fail_scoring(rig: Rig) -> None:
    rig.fail(rig.last("first"), what="scoring")


def send_nonsense(rig: Rig) -> None:
    rig.complete(rig.last("first"), 7.0, 7.0)


@pytest.mark.parametrize("step", [1, STEPS])
@pytest.mark.parametrize("end", [lose, expire, give_back, fail, fail_scoring, send_nonsense])
def test_the_next_worker_goes_on_from_the_commit(
    rig: Rig, end: Callable[[Rig], None], step: int
) -> None:
    rig.add("first")
    rig.submit(*requests(2))
    grant = rig.last()
    assert rig.commit(grant, step) == Answer(2)
    rig.add("next")
    end(rig)
    again = rig.last("next")
    assert (ids(again), steps(again)) == (ids(grant), [step] * 2)
    assert [(c.bundle, c.row) for c in again.commits if c] == [
        (saved_steps(grant, step), 0),
        (saved_steps(grant, step), 1),
    ]
    assert saved_steps(grant, step).key not in rig.deleted(), "it is in use"


def test_a_later_commit_replaces_the_one_before(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(2))
    grant = rig.last()
    for step in range(1, STEPS + 1):
        rig.commit(grant, step)
        assert rig.saved() == dict.fromkeys(ids(grant), step)
    assert rig.deleted() == [saved_steps(grant, step).key for step in range(1, STEPS)]


def test_an_older_commit_changes_nothing_and_leaves_no_bundle(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(2))
    grant = rig.last()
    rig.commit(grant, 2)
    assert rig.commit(grant, 1) == Answer(2)
    assert set(rig.saved().values()) == {2}
    assert rig.deleted() == [saved_steps(grant, 1).key]


@pytest.mark.parametrize("step", [1, STEPS])
def test_a_commit_that_is_told_twice_keeps_its_bundle(rig: Rig, step: int) -> None:
    rig.add("a")
    rig.submit(*requests(2))
    assert [rig.commit(rig.last(), step) for _ in range(2)] == [Answer(2)] * 2
    assert rig.deleted() == []
    assert rig.table.counters.commits == 1


@pytest.mark.parametrize("step", [0, -1, STEPS + 1])
def test_a_commit_after_a_step_that_cannot_be_is_refused(rig: Rig, step: int) -> None:
    rig.add("a")
    rig.submit(request(0))
    assert rig.commit(rig.last(), step) == Answer(0)
    assert rig.saved() == {}


@pytest.mark.parametrize("end", [lose, expire, give_back])
def test_a_late_commit_changes_nothing_and_leaves_no_bundle(
    rig: Rig, end: Callable[[Rig], None]
) -> None:
    rig.add("first")
    rig.submit(*requests(2))
    grant = rig.last()
    rig.add("next")
    end(rig)
    assert rig.commit(grant, 1) == Answer(0)
    assert rig.saved() == {}
    assert rig.deleted() == [saved_steps(grant, 1).key]
    assert rig.complete(rig.last("next")) == Answer(2)


@pytest.mark.parametrize("end", [lose, expire, give_back])
def test_a_commit_told_again_after_the_lease_keeps_the_bundle_in_use(
    rig: Rig, end: Callable[[Rig], None]
) -> None:
    rig.add("first")
    rig.submit(*requests(2))
    grant = rig.last()
    rig.commit(grant, 1)
    rig.add("next")
    end(rig)
    assert rig.commit(grant, 1) == Answer(0), "its receipt was lost"
    assert rig.deleted() == []
    assert steps(rig.last("next")) == [1, 1]


def test_a_commit_of_another_incarnation_changes_nothing(rig: Rig) -> None:
    rig.add("a", epoch=1)
    rig.submit(request(0))
    grant = rig.last()
    rig.add("a", epoch=2)
    assert rig.commit(grant, 1, epoch=1) == Answer(0)
    assert rig.saved() == {}
    assert rig.deleted() == [saved_steps(grant, 1).key]
    assert rig.tally.results_ignored == 1


def test_commits_go_when_the_images_are_there(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(2))
    grant = rig.last()
    rig.commit(grant, 1)
    assert rig.complete(grant) == Answer(2)
    assert rig.deleted() == [saved_steps(grant, 1).key]
    assert rig.saved() == dict.fromkeys(ids(grant), STEPS)


def test_a_commit_goes_only_when_the_last_of_its_requests_is_done(rig: Rig) -> None:
    rig.add("first")
    rig.submit(*requests(2))
    grant = rig.last()
    rig.commit(grant, 1)
    rig.add("second", batch=1)
    rig.lose("first")
    rig.complete(rig.last())
    assert rig.deleted() == [], "the other request still needs it"
    rig.complete(rig.last())
    assert len(rig.grants("second")) == 2
    assert rig.deleted() == [saved_steps(grant, 1).key]


@pytest.mark.parametrize(("what", "step"), [("denoising", 1), ("scoring", STEPS)])
def test_commits_of_requests_that_are_given_up_go(rig: Rig, what: str, step: int) -> None:
    rig.add("a")
    rig.submit(request(0))
    first = rig.last()
    rig.commit(first, step)
    for _ in range(3):
        rig.fail(rig.last(), what=what)
    assert rig.given_up() == [request(0).id]
    assert rig.deleted() == [saved_steps(first, step).key]
    assert rig.saved() == {}


def test_unusable_commits_start_over_and_cost_no_attempt(rig: Rig) -> None:
    rig.add("a")
    rig.submit(request(0))
    for _ in range(5):
        assert steps(rig.last()) == [0]
        rig.commit(rig.last(), 1)
        rig.give_back(rig.last())
        assert steps(rig.last()) == [1]
        rig.fail(rig.last(), what="commits")
        assert rig.saved() == {}
    assert rig.given_up() == []
    assert len(rig.deleted()) == 5
    assert rig.complete(rig.last()) == Answer(1)


def test_only_those_start_over_whose_commits_cannot_be_used(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(2))
    rig.commit(rig.last(), 1)
    rig.give_back(rig.last())
    rig.fail(rig.last(), request(1).id, what="commits")
    assert rig.saved() == {request(0).id: 1}
    assert rig.deleted() == [], "the other one is in the same bundle"


def test_blaming_commits_that_never_came_is_a_failed_attempt(rig: Rig) -> None:
    rig.add("a")
    rig.submit(request(0))
    for _ in range(3):
        rig.fail(rig.last(), what="commits")
    assert len(rig.grants()) == 3
    assert rig.given_up() == [request(0).id]


def test_the_images_of_a_nonsensical_completion_are_kept_only_if_they_were_committed(
    rig: Rig,
) -> None:
    rig.add("a")
    rig.submit(request(0))
    rig.complete(rig.last(), 7.0)
    assert rig.deleted() == [images(rig.grants()[0]).key]
    rig.commit(rig.last(), STEPS)
    rig.complete(rig.last(), 7.0)
    assert len(rig.deleted()) == 1
    assert steps(rig.last()) == [STEPS]


# --- how often ---


def test_groups_commit_only_when_they_must_until_a_step_s_time_is_known(rig: Rig) -> None:
    rig.add("a", batch=1)
    rig.submit(*requests(2))
    assert rig.last().commit_every == 0
    rig.complete(rig.last(), seconds=4000.0)
    assert 1 <= rig.last().commit_every < STEPS


def test_commits_follow_the_pace_of_the_group_as_it_is(rig: Rig) -> None:
    rig.profile.known = {1: 100.0, 4: 1.0}
    for name in "xyz":  # losses, without which nothing need be committed
        rig.add(name)
    rig.wait(100)
    for name in "xyz":
        rig.lose(name)
    long = msgspec.structs.replace(SETTINGS, steps=1000)
    every = []
    for members in (4, 1):
        rig.lead("a", *"bcd"[: members - 1], credits=1)
        rig.submit(request(members, settings=long))
        rig.commit(rig.last(), 1, cost_s=10.0)
        rig.complete(rig.last(), steps=0)
        rig.submit(request(10 + members, settings=long))
        every.append(rig.last().commit_every)
        rig.complete(rig.last(), steps=0)
    assert 1 <= 2 * every[1] < every[0], "steps are longer, so fewer are lost"


def test_a_worker_that_was_told_to_drop_what_it_delivered_late_cannot_keep_its_lease(
    rig: Rig,
) -> None:
    rig.add("late")
    rig.submit(*requests(2))
    grant = rig.last()
    rig.wait(20)
    rig.add("next")
    rig.bar("late", "next")
    if rig.last().worker == "late":
        rig.give_back(rig.last())
    rig.bar("late")
    assert rig.commit(grant, 1) == Answer(0)
    rig.bar("late", "next")
    rig.give_back(rig.last("next"))
    rig.report("late", grant)
    assert rig.revoked() == [grant.lease] * 2
    assert rig.table.leases() == []
