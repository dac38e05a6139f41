"""The table of requests: what is asked back so that others go on with it."""

from __future__ import annotations

import pytest
from table_rig import STEPS, Rig, ids, request, requests, steps


def test_a_leaving_worker_gets_nothing_until_its_notice_is_withdrawn(rig: Rig) -> None:
    rig.add("a")
    rig.leave("a")
    rig.submit(request(0))
    assert rig.grants() == []
    rig.leave("a", leaving=False)
    assert len(rig.grants()) == 1


def test_what_a_leaving_worker_holds_is_recalled_once_another_is_free(rig: Rig) -> None:
    rig.add("leaving")
    rig.submit(request(0))
    grant = rig.last()
    rig.leave("leaving")
    assert rig.recalled() == [], "nobody else could do it"
    rig.add("free")
    rig.report("free")
    assert rig.recalled() == [grant.lease], "once"
    rig.commit(grant, 1)
    rig.give_back(grant)
    assert (rig.last().worker, ids(rig.last()), steps(rig.last())) == ("free", ids(grant), [1])


@pytest.mark.parametrize("why", ["other work", "without the weights", "notice withdrawn"])
def test_nothing_is_recalled_for_a_worker_that_cannot_go_on_with_it(rig: Rig, why: str) -> None:
    rig.add("leaving", credits=1)
    rig.submit(*requests(8 if why == "other work" else 1))
    rig.leave("leaving")
    if why == "notice withdrawn":
        rig.leave("leaving", leaving=False)
    rig.add("free", rollout_versions=(1,) if why == "without the weights" else (0,), credits=1)
    assert rig.recalled() == []


def test_no_more_is_recalled_than_there_are_idle_workers(rig: Rig) -> None:
    for name in "abc":
        rig.add(name, credits=1)
    rig.submit(*requests(12))
    for name in "abc":
        rig.leave(name)
    rig.add("free", credits=1)
    rig.wait(3, *rig.grants())
    assert len(rig.recalled()) == 1
    (back,) = (grant for grant in rig.grants() if grant.lease in rig.recalled())
    rig.give_back(back)
    assert rig.last().worker == "free"
    assert len(rig.recalled()) == 1
    rig.complete(rig.last())
    assert len(rig.recalled()) == 2


# --- far too slow ---


def hang(rig: Rig, slow: str, fast: str, seconds: float = 4.0) -> None:
    """Both take a second for each of four steps; then the slow one is given a batch alone."""
    rig.add(slow, credits=1)
    rig.add(fast, credits=1)
    rig.submit(*requests(8))
    for grant in rig.grants():
        rig.complete(grant, seconds=seconds)
    rig.report(fast, credits=0)
    rig.submit(request(8))
    rig.report(fast, credits=1)
    assert rig.last().worker == slow


def test_the_lease_of_a_far_slower_group_is_recalled_and_goes_to_another(rig: Rig) -> None:
    hang(rig, "slow", "fast")
    grant = rig.last()
    rig.wait(12, grant, credits=1)
    assert rig.recalled() == [], "twice as slow is not far slower"
    rig.wait(4, grant, credits=1)
    assert rig.recalled() == [grant.lease]
    rig.give_back(grant)
    assert (rig.last().worker, ids(rig.last())) == ("fast", ids(grant))
    rig.complete(rig.last())
    rig.submit(request(9))
    assert rig.last().worker == "fast", "the slow one is the last to be asked"


def test_what_only_waits_for_its_rewards_is_not_slow(rig: Rig) -> None:
    hang(rig, "slow", "fast")
    rig.commit(rig.last(), STEPS)
    rig.wait(60, rig.last(), credits=1)
    assert rig.recalled() == []


def test_a_batch_of_which_little_is_left_is_slow_sooner(rig: Rig) -> None:
    hang(rig, "slow", "fast")
    rig.commit(rig.last(), 3)
    rig.wait(6, rig.last(), credits=1)
    assert len(rig.recalled()) == 1


def test_a_lone_worker_is_not_slow_because_a_group_is_fast(rig: Rig) -> None:
    rig.profile.known = {1: 3.5}
    rig.lead("g", "h", "i", "j", credits=1)
    rig.add("a", credits=1)
    rig.submit(*requests(8))
    rig.complete(rig.last("g"), members=4, seconds=4.0)
    rig.wait(40, rig.last("a"), credits=1)
    assert rig.recalled() == [], "far slower than the group, but not for one"
    rig.wait(5, rig.last("a"), credits=1)
    assert len(rig.recalled()) == 1, "and slow for one"


def test_a_group_that_changed_its_size_is_given_time_anew(rig: Rig) -> None:
    rig.profile.known = {1: 3.0, 4: 1.0}
    rig.add("free", credits=1)
    rig.add("a", credits=1)
    rig.submit(*requests(4))
    grant = rig.last()
    rig.leave("free" if grant.worker == "a" else "a", leaving=False)
    holder = grant.worker
    rig.wait(30, grant, credits=1)
    assert rig.recalled() == [], "within three times of twelve seconds"
    for name in "bcd":
        rig.join(name)
    for _ in range(12):
        rig.lead(holder, "b", "c", "d", holds=[grant], credits=1)
        rig.now += 1.0
        rig.carry_out(rig.table.tick(rig.now, 1.0))
    assert rig.recalled() == [], "for a group of four it would be late"
    rig.wait(4, grant, members=4, followers=("b", "c", "d"), credits=1)
    assert len(rig.recalled()) == 1


def test_nobody_is_slow_who_is_alone(rig: Rig) -> None:
    rig.profile.known = {1: 1.0}
    rig.add("a", credits=1)
    rig.submit(request(0))
    rig.wait(100, rig.last(), credits=1)
    assert rig.recalled() == []


# --- evaluations make room for rollouts ---


def evaluate(rig: Rig, *workers: str, **report: object) -> None:
    """These are busy with evaluations."""
    for name in workers:
        rig.add(name, credits=1, rollout_versions=(0, 1), evaluation_versions=(0, 1), **report)
    rig.submit(*requests(4 * len(workers), "evaluation"))
    assert len(rig.grants()) == len(workers)


def test_a_rollout_that_waits_recalls_an_evaluation_that_goes_on_later(rig: Rig) -> None:
    evaluate(rig, "a")
    evaluation = rig.last()
    rig.submit(*requests(4))
    assert rig.recalled() == [evaluation.lease]
    rig.commit(evaluation, 2)
    rig.give_back(evaluation)
    assert rig.last().requests == requests(4)
    rig.complete(rig.last())
    assert (ids(rig.last()), steps(rig.last())) == (ids(evaluation), [2] * 4)


def test_an_evaluation_that_made_room_is_no_failure_of_its_worker(rig: Rig) -> None:
    evaluate(rig, "a")
    evaluation = rig.last()
    rig.submit(*requests(4))
    rig.give_back(evaluation)
    rig.complete(rig.last())
    rig.complete(rig.last())
    rig.add("b", credits=1)
    rig.submit(*requests(8, group=1))
    assert [grant.worker for grant in rig.grants()[-2:]] == ["a", "b"], "none comes after the other"
    assert rig.given_up() == []


def test_as_many_evaluations_are_recalled_as_there_are_batches_that_wait(rig: Rig) -> None:
    evaluate(rig, "a", "b", "c")
    rig.submit(*requests(5))
    rig.wait(3)
    assert len(rig.recalled()) == 2


def test_a_rollout_that_can_be_granted_recalls_nothing(rig: Rig) -> None:
    evaluate(rig, "a")
    rig.add("free")
    rig.submit(request(0))
    assert rig.last().worker == "free"
    assert rig.recalled() == []


@pytest.mark.parametrize("why", ["without the weights", "barred", "leaving", "only to be scored"])
def test_no_evaluation_is_recalled_from_a_worker_that_could_not_take_the_rollout(
    rig: Rig, why: str
) -> None:
    evaluate(rig, "a")
    match why:
        case "barred":
            rig.bar("a")
        case "leaving":
            rig.leave("a")
        case "only to be scored":
            rig.report("a", rig.last(), credits=0)
            rig.commit(rig.last(), STEPS)
    rig.submit(request(0, iteration=2 if why == "without the weights" else 0))
    assert rig.recalled() == []


def test_previews_recall_no_evaluation(rig: Rig) -> None:
    evaluate(rig, "a")
    rig.submit(*requests(4, "preview"))
    assert rig.recalled() == []


def test_rollouts_recall_no_evaluation_that_has_waited_long(rig: Rig) -> None:
    rig.submit(request(0, "evaluation", 0))
    rig.submit(request(0, iteration=3))
    rig.add("a", credits=1, rollout_versions=(3,))
    assert rig.last().requests[0].kind == "evaluation"
    rig.wait(3, rig.last(), credits=1, rollout_versions=(3,))
    assert rig.recalled() == []
