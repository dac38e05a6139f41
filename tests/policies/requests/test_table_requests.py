"""The table of requests: what counts, and what becomes of a request."""

from __future__ import annotations

import pytest
from table_rig import STEPS, Rig, ids, images, request, requests, saved_steps, steps

from spotlight.policies.requests.instructions import Answer, GrantLease, RequestsFinished
from spotlight.record.run_events import (
    DenoiseFailed,
    ResultsIgnored,
    ScorerFailed,
    WorkerLost,
    WorkTakenBack,
)


def test_a_request_is_denoised_and_scored_under_one_lease(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(2))
    grant = rig.last("a")
    assert (ids(grant), steps(grant)) == ([r.id for r in requests(2)], [0, 0])
    assert rig.commit(grant, STEPS) == Answer(2)
    assert rig.complete(grant, 0.25, 1.0, scoring_s=3.0) == Answer(2)
    (told,) = rig.all(RequestsFinished)
    assert not told.restored
    assert [(r.request, r.rewards, r.bundle, r.row) for r in told.results] == [
        (requests(2)[0], (0.25,), images(grant), 0),
        (requests(2)[1], (1.0,), images(grant), 1),
    ]
    assert rig.table.open("rollout") == 0
    assert rig.deleted() == [], "training needs the images"
    assert (rig.table.counters.commits, rig.table.counters.scoring_s) == (1, 3.0)
    assert [rig.table.counters.pop_scoring_s("a") for _ in range(2)] == [3.0, 0.0]
    assert len(rig.grants()) == 1


@pytest.mark.parametrize("kind", ["preview", "evaluation"])
def test_the_images_of_what_is_not_trained_on_are_deleted_when_it_is_done(
    rig: Rig, kind: str
) -> None:
    rig.add("a")
    rig.submit(*requests(2, kind))
    rig.commit(rig.last(), STEPS)
    assert rig.deleted() == []
    rig.complete(rig.last())
    assert rig.deleted() == [images(rig.last()).key]


def test_a_request_that_is_submitted_again_is_done_and_told_once(rig: Rig) -> None:
    rig.add("a")
    rig.submit(request(0))
    rig.submit(request(0))
    rig.complete(rig.last())
    rig.submit(request(0))
    assert len(rig.grants()) == 1
    assert len(rig.all(RequestsFinished)) == 1
    assert rig.table.open("rollout") == 0


def test_a_request_counts_once_whoever_completes_it(rig: Rig) -> None:
    rig.add("slow")
    rig.submit(request(0))
    rig.add("other")
    rig.wait(20)
    slow, other = rig.grants()
    assert rig.complete(slow) == Answer(0)
    assert rig.complete(other) == Answer(1)
    assert len(rig.finished()) == 1
    assert rig.deleted() == [], "a table after this one might take it"
    rig.forget("rollout", 0)
    assert rig.deleted() == [images(slow).key]
    assert rig.tally.results_ignored == 1
    assert rig.events(ResultsIgnored) == [ResultsIgnored(worker="slow", lease=slow.lease)]


def test_a_late_completion_counts_while_nobody_else_works_on_it(rig: Rig) -> None:
    rig.add("slow")
    rig.submit(request(0))
    rig.wait(20)
    assert rig.complete(rig.last()) == Answer(1)
    assert rig.tally.results_ignored == 0


@pytest.mark.parametrize("kind", ["rollout", "preview"])
def test_a_completion_that_is_told_twice_counts_once_and_keeps_its_images(
    rig: Rig, kind: str
) -> None:
    rig.add("a")
    rig.submit(*requests(2, kind))
    assert [rig.complete(rig.last()) for _ in range(3)] == [Answer(2)] * 3
    assert len(rig.finished()) == 2
    assert len(rig.deleted()) == (kind == "preview")
    assert rig.tally.results_ignored == 0


def test_what_another_incarnation_says_changes_nothing_and_is_counted(rig: Rig) -> None:
    rig.add("a", epoch=1)
    rig.submit(request(0))
    old = rig.last()
    rig.add("a", epoch=2)
    assert rig.complete(old, epoch=1) == Answer(0)
    rig.fail(old, epoch=1)
    rig.give_back(old, epoch=1)
    assert rig.tally.results_ignored == 3
    rig.epochs["a"] = 1
    rig.report("a", credits=9)
    assert rig.finished() == {} and rig.given_up() == []
    assert [ids(grant) for grant in rig.grants()] == [[request(0).id]] * 2


def test_what_is_said_without_a_lease_changes_nothing_and_is_counted(rig: Rig) -> None:
    rig.add("a")
    rig.submit(request(0, iteration=9))
    stray = GrantLease("a", 1 << 60, requests(1), (None,), 0)
    assert rig.complete(stray) == Answer(0)
    assert rig.commit(stray, 1) == Answer(0)
    rig.fail(stray)
    rig.fail(stray, what="scoring")
    assert rig.tally.results_ignored == 4
    assert rig.events(DenoiseFailed) == rig.events(ScorerFailed) == []


def test_only_the_holder_completes_or_gives_back_a_lease(rig: Rig) -> None:
    rig.add("holder")
    rig.submit(request(0))
    grant = rig.last()
    rig.add("thief")
    assert rig.complete(grant, name="thief") == Answer(0)
    rig.give_back(grant, name="thief")
    assert len(rig.grants()) == 1
    assert rig.complete(grant) == Answer(1)


@pytest.mark.parametrize("order", [(1, 0), (0,), (0, 1, 1)])
def test_a_completion_of_other_requests_than_were_granted_counts_for_nothing(
    rig: Rig, order: tuple[int, ...]
) -> None:
    rig.add("a")
    rig.submit(*requests(2))
    grant = rig.last()
    others = tuple(requests(2)[index] for index in order)
    lie = GrantLease("a", grant.lease, others, (None,) * len(others), 0)
    assert rig.complete(lie) == Answer(0)
    assert rig.finished() == {}
    assert rig.complete(grant) == Answer(2)


# --- leases end ---


def test_a_lease_that_is_not_renewed_expires_and_its_requests_go_to_others_first(rig: Rig) -> None:
    rig.add("first", credits=1, batch=2)
    rig.submit(*requests(4))
    rig.wait(14)
    rig.add("second", credits=0)
    assert len(rig.grants()) == 1
    rig.wait(1)
    rig.report("second", credits=1)
    assert ids(rig.last("second")) == [r.id for r in requests(4)]
    assert rig.tally.handed_on == 2
    assert rig.events(WorkTakenBack) == [WorkTakenBack(items=2)]


def test_a_lease_that_is_renewed_does_not_expire(rig: Rig) -> None:
    rig.add("a")
    rig.submit(request(0))
    rig.wait(60, rig.last())
    assert len(rig.grants()) == 1
    assert rig.complete(rig.last()) == Answer(1)


def test_a_silent_worker_gets_nothing_until_it_is_heard(rig: Rig) -> None:
    rig.add("silent")
    rig.submit(request(0))
    rig.wait(60)
    assert len(rig.grants()) == 1, "it let its lease expire"
    rig.report("silent")
    assert len(rig.grants()) == 2


def test_what_a_lost_worker_held_is_issued_again_and_reported(rig: Rig) -> None:
    rig.add("lost")
    rig.submit(*requests(3))
    rig.add("other")
    rig.lose("lost")
    assert ids(rig.last("other")) == ids(rig.last("lost"))
    (event,) = rig.events(WorkerLost)
    assert (event.worker, event.node, event.reason) == ("lost", "lost's", "gone")
    assert event.requests_handed_on == {"rollout": 3}
    assert rig.tally.handed_on == 3


def test_what_a_returning_worker_held_goes_to_those_who_wait(rig: Rig) -> None:
    rig.add("returning")
    rig.submit(request(0))
    rig.add("waiting")
    rig.join("returning", epoch=2)
    assert ids(rig.last("waiting")) == [request(0).id]


def test_a_worker_that_is_added_again_as_the_same_process_keeps_its_leases(rig: Rig) -> None:
    rig.add("a")
    rig.submit(request(0))
    rig.join("a", epoch=1)
    assert rig.complete(rig.last()) == Answer(1)


def test_a_grant_that_cannot_be_sent_goes_to_another_worker(rig: Rig) -> None:
    rig.add("far")
    rig.submit(request(0))
    rig.add("near")
    rig.carry_out(rig.table.unreachable("far", rig.last("far").lease, rig.now))
    assert [grant.worker for grant in rig.grants()] == ["far", "near"]
    rig.submit(*requests(9)[1:])
    assert len(rig.grants("far")) == 1, "it must be heard first"


# --- nobody wants it any more ---


def test_cancelled_requests_are_revoked_and_never_delivered(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(8, "preview"))
    grant = rig.last()
    rig.cancel()
    assert rig.revoked() == [grant.lease]
    assert rig.complete(grant).accepted == 0
    assert rig.finished() == {}
    assert rig.table.open("preview") == 0
    assert len(rig.grants()) == 1


@pytest.mark.parametrize("step", [1, STEPS])
def test_cancelled_requests_leave_nothing_behind(rig: Rig, step: int) -> None:
    rig.add("a")
    rig.submit(*requests(2, "preview"))
    rig.commit(rig.last(), step)
    rig.cancel()
    assert rig.deleted() == [saved_steps(rig.last(), step).key]
    assert rig.journal == {}


def test_cancelling_previews_leaves_rollouts_alone(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(request(0), request(0, "preview"))
    rig.cancel()
    assert rig.revoked() == []
    assert rig.complete(rig.last()) == Answer(1)


def test_cancelled_requests_that_are_submitted_again_start_anew(rig: Rig) -> None:
    rig.add("a")
    rig.submit(request(0, "preview"))
    for _ in range(2):
        rig.fail(rig.last())
    rig.cancel()
    rig.submit(request(0, "preview"))
    rig.fail(rig.last())
    assert rig.given_up() == []


def test_a_revoked_lease_is_not_taken_up_again_by_a_report_that_crossed_the_revocation(
    rig: Rig,
) -> None:
    rig.add("a", credits=1)
    rig.submit(request(0, "preview"))
    grant = rig.last()
    rig.cancel()
    rig.bar("a")
    rig.submit(request(0, "preview"))
    rig.report("a", grant, credits=1)
    assert rig.revoked() == [grant.lease] * 2, "told once more"
    rig.report("a", credits=1)
    rig.bar()
    assert rig.last().lease != grant.lease
    assert ids(rig.last()) == [request(0, "preview").id]


def test_what_is_forgotten_is_not_known_any_more(rig: Rig) -> None:
    rig.add("a")
    rig.submit(request(0), request(0, iteration=1, version=0))
    for number in range(2):
        rig.complete(rig.grants()[number])
    rig.forget("rollout", 0)
    assert rig.table.story(request(0).id).endswith("not known")
    assert "done" in rig.table.story(request(0, iteration=1, version=0).id)
    assert rig.deleted() == [], "who trained on them deletes them"


def test_what_is_not_over_is_not_forgotten(rig: Rig) -> None:
    rig.add("a")
    rig.submit(request(0))
    rig.forget("rollout", 0)
    assert rig.complete(rig.last()) == Answer(1)


def test_a_story_tells_the_life_of_a_request(rig: Rig) -> None:
    wanted = request(0)
    rig.submit(wanted)
    rig.now = 1.0
    rig.add("a")
    rig.commit(rig.last(), 3)
    rig.add("b")
    rig.lose("a")
    rig.fail(rig.last("b"))
    rig.now = 2.5
    rig.complete(rig.last("b"), 0.75)
    head, *events = rig.table.story(wanted.id).splitlines()
    assert head == f"{wanted.id}: done after {STEPS} steps"
    told = ("submitted", "committed step 3", "a is gone: gone", "failed at b: broken", "0.7500")
    found = [next(i for i, line in enumerate(events) if what in line) for what in told]
    assert found == sorted(found)
    assert events[0].strip().startswith("0.000 s") and events[-1].strip().startswith("2.500 s")


def test_a_story_does_not_grow_without_end(rig: Rig) -> None:
    rig.add("a")
    rig.submit(request(0))
    for _ in range(100):
        rig.give_back(rig.last())
    assert len(rig.table.story(request(0).id).splitlines()) < 50


def test_what_is_released_is_dropped_with_its_samples_and_granted_to_nobody(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(8))
    done = rig.last("a")
    rig.commit(done, STEPS)
    rig.complete(done)
    in_work = rig.last("a")
    assert ids(in_work) == [each.id for each in requests(8)[4:]]
    rig.submit(*requests(4, group=1))
    rig.carry_out(
        rig.table.release([*ids(done), *(each.id for each in requests(4, group=1))], rig.now)
    )
    assert rig.deleted() == [images(done).key]
    assert sorted(rig.journal) == []
    rig.commit(in_work, STEPS)
    rig.complete(in_work)
    assert len(rig.grants()) == 2, "nothing waits any more"


def test_what_is_in_work_is_released_when_it_is_done(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(4))
    grant = rig.last("a")
    rig.carry_out(rig.table.release(ids(grant)[:2], rig.now))
    rig.commit(grant, STEPS)
    assert rig.complete(grant) == Answer(4), "the others are wanted"
    rig.carry_out(rig.table.release(ids(grant)[:2], rig.now))
    assert rig.deleted() == []
    rig.carry_out(rig.table.release(ids(grant)[2:], rig.now))
    assert rig.deleted() == [images(grant).key]


def test_a_result_says_how_many_had_it_and_where_the_last_took_over(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(1))
    first = rig.last("a")
    rig.commit(first, 2)
    rig.add("b")
    rig.lose("a")
    second = rig.last("b")
    rig.commit(second, STEPS)
    rig.complete(second)
    (told,) = rig.all(RequestsFinished)
    assert [(each.attempts, each.resumed_at) for each in told.results] == [(2, 2)]
