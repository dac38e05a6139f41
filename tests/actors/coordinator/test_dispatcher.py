"""The dispatcher: what counts, what is issued again, who gets what."""

from __future__ import annotations

import asyncio

import pytest
from desk_kit import Desk, ids, images, steps
from job_kit import recorder, request, requests

from spotlight.actors.protocol import (
    BarWorkers,
    CancelRequests,
    DenoiseFailed,
    Grant,
    Pull,
    RemoveWorkers,
    RequestsFinished,
    RequestsGivenUp,
    Revoke,
    ScoreGrant,
)

pytestmark = pytest.mark.virtual_time


async def test_a_request_is_denoised_then_scored_then_finished(desk: Desk) -> None:
    worker = await desk.add("a")
    wanted = requests(2)
    await desk.submit(*wanted)
    assert worker.last(Grant).requests == wanted
    assert await desk.complete("a", worker.last(Grant).lease) == 2
    assert worker.last(ScoreGrant).rows == (0, 1)
    await desk.score("a", worker.last(ScoreGrant).lease, 0.25, 1.0)
    results = desk.submitter.last(RequestsFinished).results
    assert [(r.request, r.reward, r.row) for r in results] == [
        (wanted[0], 0.25, 0),
        (wanted[1], 1.0, 1),
    ]
    assert desk.statistics.open["rollout"] == 0
    assert desk.discarded == [], "training needs the bundle"


async def test_the_bundle_of_a_scored_preview_is_dropped(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1, "preview"))
    await desk.complete("a", worker.last(Grant).lease)
    await desk.score("a", worker.last(ScoreGrant).lease, 0.5)
    assert desk.gone() == [images("a", worker.last(Grant)).key]


async def test_a_request_that_is_submitted_twice_is_done_once(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    await desk.submit(*requests(1))
    await desk.complete("a", worker.last(Grant).lease)
    await desk.score("a", worker.last(ScoreGrant).lease, 0.5)
    assert len(worker.all(Grant)) == 1
    assert len(desk.finished()) == 1
    assert desk.statistics.open["rollout"] == 0


async def test_a_request_counts_once_whoever_completes_it(desk: Desk) -> None:
    slow = await desk.add("slow")
    await desk.submit(*requests(1))
    other = await desk.add("other")
    await asyncio.sleep(20.0)  # the lease expires, and the request is granted again
    assert await desk.complete("slow", slow.last(Grant).lease) == 0
    assert await desk.complete("other", other.last(Grant).lease) == 1
    await desk.score("other", other.last(ScoreGrant).lease, 0.5)
    assert len(desk.finished()) == 1
    assert desk.statistics.late == 1
    assert desk.gone() == [images("slow", slow.last(Grant)).key]


async def test_a_late_completion_counts_while_nobody_else_works_on_it(desk: Desk) -> None:
    slow = await desk.add("slow")
    await desk.submit(*requests(1))
    await asyncio.sleep(20.0)
    assert await desk.complete("slow", slow.last(Grant).lease) == 1
    assert desk.statistics.late == 0


async def test_a_completion_that_is_delivered_twice_keeps_its_bundle(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    lease = worker.last(Grant).lease
    assert await desk.complete("a", lease) == 2
    assert await desk.complete("a", lease) == 2
    await desk.score("a", worker.last(ScoreGrant).lease, 0.5, 0.5)
    assert await desk.complete("a", lease) == 2
    assert desk.discarded == []
    assert len(desk.finished()) == 2


async def test_rewards_that_are_delivered_twice_count_once(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    await desk.complete("a", worker.last(Grant).lease)
    lease = worker.last(ScoreGrant).lease
    await desk.score("a", lease, 0.5)
    await desk.score("a", lease, 0.9)
    assert [r.reward for r in desk.submitter.last(RequestsFinished).results] == [0.5]
    assert len(desk.finished()) == 1
    assert desk.statistics.late == 1


async def test_an_answer_of_an_old_epoch_changes_nothing_and_is_counted(desk: Desk) -> None:
    worker = await desk.add("a", epoch=1)
    await desk.submit(*requests(1))
    old = worker.last(Grant).lease
    await desk.add("a", epoch=2)
    assert await desk.complete("a", old, epoch=1) == 0
    await desk.tell(DenoiseFailed("a", 1, old, "too late"))
    await desk.tell(Pull("a", 1, 1, 9, 9, (0,), (0,)))
    assert desk.statistics.late == 3
    assert desk.finished() == desk.given_up() == []
    assert len(worker.all(Grant)) == 2, "the request was granted to the new process"


async def test_late_answers_stay_counted(desk: Desk) -> None:
    await desk.add("a", epoch=2)
    await desk.complete("a", 77, epoch=1)
    await desk.submit(*requests(1))
    assert desk.statistics.late == 1


async def test_an_answer_without_a_lease_changes_nothing_and_is_counted(desk: Desk) -> None:
    await desk.add("a")
    await desk.submit(*requests(1, version=9))
    assert await desk.complete("a", 1 << 60) == 0
    await desk.score("a", 1234, 0.5)
    await desk.fail_score("a", 1234)
    await desk.tell(DenoiseFailed("a", 1, 1234, "no"))
    assert desk.statistics.late == 4
    assert desk.event("scorer_failed") == desk.event("denoise_failed") == []


async def test_the_lease_of_another_worker_cannot_be_completed(desk: Desk) -> None:
    holder = await desk.add("holder")
    await desk.submit(*requests(1))
    await desk.add("thief")
    assert await desk.complete("thief", holder.last(Grant).lease) == 0
    assert await desk.complete("holder", holder.last(Grant).lease) == 1


async def test_a_lease_that_is_not_renewed_expires_and_its_requests_are_issued_again(
    desk: Desk,
) -> None:
    first = await desk.add("first", credits=1)
    await desk.submit(*requests(2))
    second = await desk.add("second", credits=1)
    await asyncio.sleep(20.0)
    assert [ids(grant) for grant in first.all(Grant)] == [[r.id for r in requests(2)]]
    assert [ids(grant) for grant in second.all(Grant)] == [[r.id for r in requests(2)]]
    assert desk.statistics.reissued == 2
    assert desk.event("leases_expired") == [{"items": 2}]


async def test_a_lease_that_is_renewed_does_not_expire(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    lease = worker.last(Grant).lease
    for _ in range(20):
        await asyncio.sleep(4.0)
        await desk.pull("a", holds=(worker.last(Grant),))
    assert len(worker.all(Grant)) == 1
    assert await desk.complete("a", lease) == 1


async def test_a_lost_workers_requests_are_issued_again_and_reported(desk: Desk) -> None:
    lost = await desk.add("lost")
    await desk.submit(*requests(3))
    other = await desk.add("other")
    await desk.tell(RemoveWorkers(("lost",), "preempted"))
    assert ids(other.last(Grant)) == ids(lost.last(Grant))
    (event,) = desk.event("worker_lost")
    assert (event["worker"], event["reason"]) == ("lost", "preempted")
    assert event["requests_reissued"] == {"rollout": 3}
    assert desk.statistics.reissued == 3


async def test_what_a_lost_worker_had_to_score_is_scored_elsewhere(desk: Desk) -> None:
    lost = await desk.add("lost")
    await desk.submit(*requests(1))
    await desk.complete("lost", lost.last(Grant).lease)
    other = await desk.add("other")
    assert other.all(ScoreGrant) == [], "batches are scored where they were made"
    await desk.tell(RemoveWorkers(("lost",), "preempted"))
    await desk.score("other", other.last(ScoreGrant).lease, 0.5)
    assert len(desk.finished()) == 1


async def test_what_a_returning_worker_held_goes_to_those_who_wait(desk: Desk) -> None:
    held = await desk.add("returning")
    await desk.submit(*requests(1))
    waiting = await desk.add("waiting")
    await desk.join("returning", 2)
    assert ids(waiting.last(Grant)) == ids(held.last(Grant))


async def test_no_rollout_is_granted_to_a_group_without_its_weights(desk: Desk) -> None:
    worker = await desk.add("a", rollout=(0,))
    await desk.submit(*requests(1, version=1))
    assert worker.all(Grant) == []
    await desk.pull("a", rollout=(0, 1))
    assert len(worker.all(Grant)) == 1


async def test_evaluation_needs_the_evaluation_weights(desk: Desk) -> None:
    worker = await desk.add("a", rollout=(1,), evaluation=())
    await desk.submit(*requests(1, "evaluation", version=1))
    assert worker.all(Grant) == []
    await desk.pull("a", rollout=(1,), evaluation=(1,))
    assert len(worker.all(Grant)) == 1


async def test_a_lease_never_mixes_kinds_or_weights(desk: Desk) -> None:
    await desk.submit(
        *requests(1, "evaluation"), *requests(1, "preview"), *requests(1), *requests(1, version=1)
    )
    worker = await desk.add("a", credits=9, rollout=(0, 1), batch=8)
    for _ in range(4):
        await desk.complete("a", worker.last(Grant).lease)
    kinds = [(r.kind, r.weights_version) for g in worker.all(Grant) for r in g.requests]
    assert all(len(grant.requests) == 1 for grant in worker.all(Grant))
    assert [kind for kind, _ in kinds] == ["rollout", "preview", "evaluation"]
    assert len(desk.statistics.open) == 3


async def test_near_the_end_nothing_waits_behind_a_busy_worker(desk: Desk) -> None:
    busy = await desk.add("busy")
    await desk.submit(*requests(8))
    assert len(busy.all(Grant)) == 1, "the rest could go to a worker that becomes idle"
    idle = await desk.add("idle")
    assert len(idle.all(Grant)) == 1


async def test_while_the_queue_is_long_a_busy_worker_has_one_batch_waiting(desk: Desk) -> None:
    busy = await desk.add("busy")
    await desk.submit(*requests(40))
    assert len(busy.all(Grant)) == 2


async def test_less_urgent_requests_do_not_make_a_busy_worker_take_what_others_could_begin(
    desk: Desk,
) -> None:
    eager = await desk.add("eager")
    await desk.submit(*requests(8), *requests(40, "evaluation"))
    assert len(eager.all(Grant)) == 1
    other = await desk.add("other")
    assert [r.kind for r in other.all(Grant)[0].requests] == ["rollout"] * 4


async def test_barred_workers_get_nothing_until_they_are_free(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.tell(BarWorkers(("a",)))
    await desk.submit(*requests(1))
    assert worker.all(Grant) == []
    await desk.tell(BarWorkers(()))
    assert len(worker.all(Grant)) == 1


async def test_what_a_barred_worker_made_is_scored_elsewhere(desk: Desk) -> None:
    maker = await desk.add("maker")
    await desk.submit(*requests(1))
    await desk.tell(BarWorkers(("maker",)))
    other = await desk.add("other")
    await desk.complete("maker", maker.last(Grant).lease)
    assert maker.all(ScoreGrant) == []
    assert len(other.all(ScoreGrant)) == 1


async def test_cancelled_previews_are_revoked_and_never_delivered(desk: Desk) -> None:
    worker = await desk.add("a", credits=1)
    await desk.submit(*requests(8, "preview"))
    lease = worker.last(Grant).lease
    await desk.tell(CancelRequests("preview"))
    assert worker.last(Revoke).leases == (lease,)
    assert await desk.complete("a", lease) == 0
    assert desk.submitter.inbox == []
    assert desk.statistics.open["preview"] == 0
    assert len(worker.all(Grant)) == 1


async def test_cancelled_previews_that_are_being_scored_leave_nothing(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1, "preview"))
    await desk.complete("a", worker.last(Grant).lease)
    await desk.tell(CancelRequests("preview"))
    await desk.score("a", worker.last(ScoreGrant).lease, 0.5)
    assert desk.submitter.inbox == []
    assert desk.gone() == [images("a", worker.last(Grant)).key]
    assert desk.statistics.late == 1


async def test_cancelling_previews_leaves_rollouts_alone(desk: Desk) -> None:
    worker = await desk.add("a", credits=1)
    await desk.submit(*requests(1))
    await desk.submit(*requests(1, "preview"))
    await desk.tell(CancelRequests("preview"))
    assert await desk.complete("a", worker.last(Grant).lease) == 1
    assert worker.all(Revoke) == []


async def test_a_failing_scorer_is_tried_again_then_given_up_and_never_a_reward(
    desk: Desk,
) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    await desk.complete("a", worker.last(Grant).lease)
    for attempt in range(3):
        assert len(worker.all(ScoreGrant)) == attempt + 1
        await desk.fail_score("a", worker.last(ScoreGrant).lease)
    assert len(worker.all(ScoreGrant)) == 3
    assert desk.finished() == []
    assert desk.given_up() == [r.id for r in requests(2)]
    assert len(desk.event("scorer_failed")) == 3
    assert desk.gone() == [images("a", worker.last(Grant)).key]


async def test_after_a_failure_another_worker_may_score(desk: Desk) -> None:
    broken = await desk.add("broken")
    sound = await desk.add("sound")
    await desk.submit(*requests(1))
    maker = "broken" if broken.all(Grant) else "sound"
    other = sound if maker == "broken" else broken
    await desk.complete(maker, desk.workers[maker].last(Grant).lease)
    for _ in range(2):
        name = "broken" if len(broken.all(ScoreGrant)) > len(sound.all(ScoreGrant)) else "sound"
        await desk.fail_score(name, desk.workers[name].last(ScoreGrant).lease)
    assert len(broken.all(ScoreGrant)) + len(sound.all(ScoreGrant)) == 3
    assert other.all(ScoreGrant), "it is not the maker's alone any more"


async def test_a_score_that_never_comes_is_asked_for_again(desk: Desk) -> None:
    wedged = await desk.add("wedged")
    await desk.submit(*requests(1))
    await desk.complete("wedged", wedged.last(Grant).lease)
    other = await desk.add("other")
    await asyncio.sleep(40.0)
    assert len(wedged.all(ScoreGrant)) + len(other.all(ScoreGrant)) >= 2
    assert other.all(ScoreGrant)


@pytest.mark.parametrize(
    "rewards", [(0.5,), (0.5, 0.5, 0.5), (), (0.5, 1.5), (-0.1, 0.5), (float("nan"), 0.5)]
)
async def test_nonsense_of_a_scorer_is_a_failed_attempt(
    desk: Desk, rewards: tuple[float, ...]
) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(2))
    await desk.complete("a", worker.last(Grant).lease)
    await desk.score("a", worker.last(ScoreGrant).lease, *rewards)
    assert desk.finished() == []
    assert len(desk.event("scorer_failed")) == 1
    await desk.score("a", worker.last(ScoreGrant).lease, 0.25, 0.75)
    assert len(desk.finished()) == 2


async def test_a_batch_that_cannot_be_denoised_is_tried_again_then_given_up(desk: Desk) -> None:
    worker = await desk.add("a")
    await desk.submit(*requests(1))
    for _ in range(3):
        await desk.tell(DenoiseFailed("a", 1, worker.last(Grant).lease, "out of memory"))
    assert len(worker.all(Grant)) == 3
    assert desk.given_up() == ["rollout/0/0/0"]
    assert desk.submitter.last(RequestsGivenUp).reason == "out of memory"


async def test_a_grant_that_cannot_be_sent_goes_to_another_worker(desk: Desk) -> None:
    far = await desk.cluster.system("far")
    remote = await recorder(far, "leader")
    desk.workers["far"] = remote
    await desk.join("far", 1)
    far.tell(desk.dispatcher, Pull("far", 1, 1, 2, 4, (0,), (0,)), sender=remote.ref)
    await asyncio.sleep(1.0)
    await far.abort()
    await asyncio.sleep(10.0)
    await desk.submit(*requests(1))
    near = await desk.add("near")
    await asyncio.sleep(20.0)
    assert [ids(grant) for grant in near.all(Grant)] == [["rollout/0/0/0"]]


async def test_a_group_gets_the_prompts_that_it_still_has(desk: Desk) -> None:
    worker = await desk.add("a", credits=0)
    await desk.submit(*(request(n, group=group) for group in (0, 1) for n in range(2)))
    await desk.pull("a", batch=2, prompts=('"1"',))
    assert ids(worker.all(Grant)[0]) == ["rollout/0/1/0", "rollout/0/1/1"]


async def test_rollouts_come_before_previews_before_evaluations_and_older_before_newer(
    desk: Desk,
) -> None:
    worker = await desk.add("a", credits=0)
    await desk.submit(
        *requests(1, "evaluation", iteration=0),
        *requests(1, "preview", iteration=2),
        *requests(1, "preview", iteration=1),
        *requests(1, iteration=2, version=1),
        *requests(1, iteration=1, version=0),
    )
    await desk.pull("a", credits=1, rollout=(0, 1))
    for _ in range(4):
        await desk.complete("a", worker.last(Grant).lease)
    order = [(r.kind, r.iteration) for grant in worker.all(Grant) for r in grant.requests]
    assert order[0] == ("rollout", 1)
    assert order[1] == ("rollout", 2)
    assert [kind for kind, _ in order[2:]] == ["preview", "preview", "evaluation"]


async def test_what_is_begun_comes_before_what_is_not(desk: Desk) -> None:
    worker = await desk.add("a", credits=1)
    await desk.submit(*requests(1))
    await desk.commit("a", worker.last(Grant), 1)
    other = await desk.add("other", credits=0)
    await desk.submit(*requests(4))
    await desk.tell(RemoveWorkers(("a",), "preempted"))
    await desk.pull("other", credits=1)
    assert (ids(other.last(Grant)), steps(other.last(Grant))) == ([requests(1)[0].id], [1])
