"""A table of requests that goes on from what one before it left in the journal."""

from __future__ import annotations

import pytest
from table_rig import STEPS, Rig, ids, images, request, requests, saved_steps, steps

from spotlight.policies.requests.instructions import Answer, GrantLease, RequestsFinished
from spotlight.record.run_events import WorkTakenBack


def begun(rig: Rig, *wanted: object, **report: object) -> GrantLease:
    """A worker that was granted these, or two rollouts."""
    rig.add("a", **report)
    rig.submit(*(wanted or requests(2)))
    return rig.last()


def test_finished_requests_are_answered_at_once(rig: Rig) -> None:
    grant = begun(rig)
    rig.complete(grant, 0.25, 0.75)
    rig.restart()
    rig.submit(*requests(3))
    (told,) = rig.all(RequestsFinished)
    assert told.restored
    assert [(r.rewards, r.bundle, r.row) for r in told.results] == [
        ((0.25,), images(grant), 0),
        ((0.75,), images(grant), 1),
    ]
    assert rig.table.open("rollout") == 1
    rig.add("b")
    assert ids(rig.last()) == [request(2).id]


@pytest.mark.parametrize("step", [1, STEPS])
def test_requests_go_on_from_their_commits(rig: Rig, step: int) -> None:
    grant = begun(rig)
    rig.commit(grant, step)
    rig.restart()
    rig.submit(*requests(2))
    rig.add("b")
    assert (ids(rig.last()), steps(rig.last())) == (ids(grant), [step] * 2)
    assert bool(rig.table.backlog()) == (step < STEPS)
    assert rig.complete(rig.last(), 0.25, 0.75) == Answer(2)
    assert list(rig.finished().values()) == [0.25, 0.75]
    assert rig.deleted() == [saved_steps(grant, step).key]


def test_half_of_a_committed_batch_may_be_submitted_later_than_the_other(rig: Rig) -> None:
    wanted = requests(4, "preview")
    grant = begun(rig, *wanted)
    rig.commit(grant, STEPS)
    rig.restart()
    rig.add("b")
    for half in (wanted[1:3], (wanted[0], wanted[3])):
        assert images(grant).key not in rig.deleted(), "the others are still in it"
        rig.submit(*half)
        assert [c.row for c in rig.last().commits if c] == [wanted.index(r) for r in half]
        rig.complete(rig.last())
    assert images(grant).key in rig.deleted()
    assert len(rig.finished()) == 4


def test_given_up_requests_stay_given_up(rig: Rig) -> None:
    begun(rig, request(0))
    for _ in range(3):
        rig.fail(rig.last())
    rig.restart()
    rig.submit(*requests(2))
    assert rig.given_up() == [request(0).id]
    rig.add("b")
    assert ids(rig.last()) == [request(1).id]
    assert rig.table.open("rollout") == 1


def test_nothing_is_left_of_previews_that_are_not_submitted_again(rig: Rig) -> None:
    done = begun(rig, *requests(6, "preview"), batch=2, credits=1)
    rig.complete(done)
    half = rig.last()
    rig.commit(half, 1)
    rig.restart()
    rig.submit(*requests(6, "preview")[4:])
    rig.forget("preview", 0)
    assert sorted(rig.deleted()) == [saved_steps(half, 1).key, images(done).key]


def test_batches_of_which_only_the_rewards_are_missing_are_shared_out(rig: Rig) -> None:
    for name in "efghij":
        rig.add(name, credits=1)
    rig.submit(*requests(24))
    for grant in list(rig.grants()):
        rig.commit(grant, STEPS)
    rig.restart()
    rig.add("b")
    rig.add("c")
    rig.submit(*requests(24))
    assert len(rig.grants("b")) == len(rig.grants("c")) == 2, "as many as they have credits"


# --- leases that groups still work on ---


@pytest.mark.parametrize("heard_first", [True, False])
def test_a_running_lease_goes_on(rig: Rig, heard_first: bool) -> None:
    grant = begun(rig)
    rig.restart()
    rig.join("a")
    if heard_first:
        rig.report("a", grant)
        rig.submit(*requests(2))
    else:
        rig.submit(*requests(2))
        rig.report("a", grant)
    assert rig.revoked() == []
    rig.add("b")
    assert rig.grants() == []
    assert rig.commit(grant, 1) == Answer(2)
    assert rig.complete(grant) == Answer(2)


def test_a_lease_of_weights_that_were_trained_again_does_not_go_on(rig: Rig) -> None:
    """A worker that was out of reach may still work with what had the same version."""
    grant = begun(rig)
    rig.restart()
    rig.table.remember(dict(rig.journal), grant.lease + 1)
    rig.join("a")
    rig.submit(*requests(2))
    rig.report("a", grant)
    assert rig.revoked() == [grant.lease]
    assert rig.complete(grant) == Answer(0)
    assert rig.finished() == {}


def test_who_is_heard_first_does_not_get_what_others_work_on(rig: Rig) -> None:
    grant = begun(rig)
    rig.restart(listen_s=3.0)
    rig.submit(*requests(3))
    rig.add("b")
    rig.wait(1)
    rig.join("a")
    rig.report("a", grant)
    rig.wait(2)
    assert rig.revoked() == []
    assert [ids(one) for one in rig.grants()] == [[request(2).id]]


def test_a_lease_that_goes_on_expires_like_any_other(rig: Rig) -> None:
    grant = begun(rig)
    rig.restart()
    rig.join("a")
    rig.report("a", grant)
    rig.submit(*requests(2))
    rig.add("b")
    rig.wait(14)
    assert rig.grants() == []
    rig.wait(1)
    assert ids(rig.last("b")) == ids(grant)


@pytest.mark.parametrize("why", ["granted to another", "named twice", "empty", "never granted"])
def test_a_lease_goes_on_only_if_all_it_names_waits(rig: Rig, why: str) -> None:
    grant = begun(rig)
    rig.restart()
    rig.submit(*requests(2))
    lease, named = grant.lease, requests(2)
    match why:
        case "granted to another":
            rig.add("b", batch=1)
        case "named twice":
            named = requests(1) * 2
        case "empty":
            named = ()
        case "never granted":
            lease = 1 << 60
    rig.join("a")
    rig.report("a", GrantLease("a", lease, named, (None,) * len(named), 0), credits=0)
    assert rig.revoked() == [lease]


def test_a_lease_that_another_group_adopted_is_revoked(rig: Rig) -> None:
    grant = begun(rig, *requests(4))
    rig.restart()
    rig.submit(*requests(4))
    for name, half in (("b", requests(4)[:2]), ("a", requests(4)[2:])):
        rig.join(name)
        rig.report(name, GrantLease(name, grant.lease, half, (None,) * 2, 0), credits=0)
    assert rig.revoked() == [grant.lease]


def test_a_completion_that_comes_before_its_requests_is_asked_for_again(rig: Rig) -> None:
    grant = begun(rig)
    rig.restart()
    assert rig.complete(grant) == Answer(0, ask_again=True), "not even the worker is known"
    rig.join("a")
    assert rig.complete(grant) == Answer(0, ask_again=True)
    assert rig.deleted() == []
    rig.submit(*requests(2))
    assert rig.complete(grant) == Answer(2)
    assert len(rig.finished()) == 2


@pytest.mark.parametrize("step", [1, STEPS])
def test_a_commit_that_comes_before_anything_is_submitted_is_asked_for_again(
    rig: Rig, step: int
) -> None:
    """Nor is the bundle deleted: the rows that an earlier table left may need it."""
    grant = begun(rig)
    rig.commit(grant, step)
    rig.restart()
    rig.join("a")
    assert rig.commit(grant, step) == Answer(0, ask_again=True)
    assert rig.deleted() == []


@pytest.mark.parametrize("kind", ["rollout", "preview"])
def test_a_completion_told_again_after_a_restart_is_accepted_again(rig: Rig, kind: str) -> None:
    grant = begun(rig, *requests(2, kind))
    rig.complete(grant)
    rig.restart()
    rig.join("a")
    rig.submit(*requests(2, kind))
    assert rig.complete(grant) == Answer(2)
    assert len(rig.finished()) == 2
    assert kind == "preview" or rig.deleted() == []


def test_a_lease_on_what_is_not_wanted_any_more_is_revoked(rig: Rig) -> None:
    grant = begun(rig)
    rig.restart()
    rig.submit(request(0, iteration=1))
    rig.join("a")
    rig.report("a", grant)
    assert rig.revoked() == [grant.lease]
    assert rig.complete(grant) == Answer(0)
    assert rig.deleted() == [images(grant).key]


def test_a_lease_that_was_revoked_is_not_taken_up_when_its_requests_come_after_all(
    rig: Rig,
) -> None:
    grant = begun(rig)
    rig.restart()
    rig.submit(request(0, iteration=1))
    rig.join("a")
    rig.report("a", grant, credits=0)
    rig.submit(*requests(2))
    rig.add("b")
    assert rig.last("b").requests == requests(2)


def test_previews_whose_seeds_are_chosen_are_not_waited_for(rig: Rig) -> None:
    grant = begun(rig, *requests(2, "preview", iteration=1))
    rig.restart()
    rig.submit(request(0, iteration=1))
    rig.join("a")
    rig.report("a", grant)
    assert rig.revoked() == [grant.lease]


def test_previews_that_are_submitted_bit_by_bit_are_waited_for(rig: Rig) -> None:
    previews = requests(8, "preview", iteration=1)
    begun(rig, *previews, batch=2)
    first, second = rig.grants()[:2]
    rig.restart()
    rig.join("a")
    rig.report("a", second, credits=1)
    rig.submit(*previews[:2])
    assert rig.revoked() == []
    rig.submit(*previews[2:])
    assert rig.complete(second) == Answer(2)
    assert ids(first) == ids(previews[:2])


@pytest.mark.parametrize(
    "what",
    [
        "is another process",
        "is lost",
        "cannot be reached",
        "is silent",
    ],
)
def test_one_that_waits_for_what_is_not_submitted_yet_may_be_gone_when_it_is(
    rig: Rig, what: str
) -> None:
    grant = begun(rig)
    rig.restart()
    rig.join("a")
    rig.submit(request(0, "evaluation"))
    rig.report("a", grant)
    match what:
        case "is another process":
            rig.join("a", epoch=2)
        case "is lost":
            rig.lose("a")
        case "cannot be reached":
            rig.carry_out(rig.table.unreachable("a", rig.last().lease, rig.now))
        case "is silent":
            rig.wait(15)
    rig.submit(*requests(2))
    rig.add("b", evaluation_versions=())
    assert rig.last("b").requests == requests(2)
    assert rig.complete(rig.last("b")) == Answer(2)


def test_a_commit_that_is_overtaken_for_one_request_is_kept_for_the_others(rig: Rig) -> None:
    grant = begun(rig)
    rig.wait(15)
    rig.add("b", batch=1, credits=1)
    rig.commit(rig.last("b"), 3)
    rig.lose("b")
    rig.report("a", grant)
    assert rig.commit(grant, 2) == Answer(2)
    assert sorted(rig.saved().values()) == [2, 3]


@pytest.mark.parametrize("later", [0.0, 0.5])
def test_a_lease_that_goes_on_under_its_old_number_expires_once(rig: Rig, later: float) -> None:
    grant = begun(rig)
    rig.lose("a")
    rig.join("a")
    rig.now += later
    rig.report("a", grant)
    rig.wait(15)
    assert rig.events(WorkTakenBack) == [WorkTakenBack(items=2)]
    rig.report("a", grant)
    assert rig.complete(grant) == Answer(2)
