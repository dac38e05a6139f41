"""The table of requests: gradients of slices of an update, and who computes them."""

from __future__ import annotations

import pytest
from table_rig import LEASE_S, SETTINGS, STEPS, Rig, gradients, ids, request, requests

from spotlight.policies.requests.instructions import DeleteBundle, Persist, RequestsFinished
from spotlight.record.run_events import (
    DenoiseFailed,
    GradientFailed,
    RequestGivenUp,
    ResultsIgnored,
    WorkerIsSick,
)
from spotlight.types import RequestKind


def computing(rig: Rig, *workers: str, slices: int = 5) -> None:
    """These compute gradients, and an update of so many slices waits."""
    for name in workers:
        rig.add(name, credits=1)
    rig.compute(*workers)
    rig.submit(*gradients(slices))


def granted(rig: Rig, worker: str = "") -> list[int]:
    """The slices, in the order in which they were granted."""
    return [one.group for grant in rig.grants(worker) for one in grant.requests]


# --- who is given what ---


def test_a_gradient_is_granted_alone_and_the_last_slice_first(rig: Rig) -> None:
    computing(rig, "a")
    while rig.table.open("gradient"):
        rig.computed(rig.last())
    assert granted(rig) == [4, 3, 2, 1, 0]
    assert all(len(grant.requests) == 1 for grant in rig.grants())


def test_those_who_compute_are_given_one_slice_each(rig: Rig) -> None:
    rig.add("a", credits=2)
    rig.add("b", credits=2)
    rig.compute("a", "b")
    rig.submit(*gradients(4))
    assert (granted(rig, "a"), granted(rig, "b")) == ([3], [2])


def test_nobody_is_given_gradients_who_does_not_compute(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*gradients(3))
    assert rig.grants() == []
    rig.compute("a")
    assert granted(rig, "a")[0] == 2


@pytest.mark.parametrize("kind", ["rollout", "preview", "evaluation", "random"])
def test_a_worker_that_computes_is_given_nothing_else(rig: Rig, kind: str) -> None:
    rig.add("a")
    rig.compute("a")
    rig.submit(*requests(4, kind))
    assert rig.grants() == []
    rig.compute()
    assert ids(rig.last("a")) == ids(requests(4, kind))


def test_it_denoises_what_it_was_given_before_it_computes(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(2))
    denoised = rig.last()
    rig.compute("a")
    rig.submit(*gradients(2))
    assert (rig.revoked(), rig.recalled()) == ([], [])
    assert rig.complete(denoised).accepted == 2
    assert granted(rig)[-1] == 1


def test_it_is_known_which_gradients_wait_behind_something_else(rig: Rig) -> None:
    rig.add("a", credits=2)
    rig.submit(*requests(2))
    rollouts, slices = rig.last(), gradients(20)
    rig.compute("a")
    rig.submit(*slices)
    assert granted(rig)[-1] == 19
    assert rig.table.waits_its_turn(slices[0].id)
    assert not rig.table.waits_its_turn(slices[1].id), "nobody has it"
    rig.complete(rollouts)
    assert not rig.table.waits_its_turn(slices[0].id)


def test_a_worker_that_is_there_later_computes_at_once(rig: Rig) -> None:
    rig.compute("a")
    rig.submit(*gradients(2))
    rig.add("a", credits=1)
    assert granted(rig, "a") == [1]


def test_a_group_of_several_is_given_none_until_its_leader_is_alone(rig: Rig) -> None:
    rig.lead("a", "b", credits=1)
    rig.compute("a", "b")
    rig.submit(*gradients(2))
    assert rig.grants() == []
    rig.lead("a", credits=1)
    assert granted(rig, "a") == [1]


def test_a_worker_is_given_none_without_the_weights_that_roll_out(rig: Rig) -> None:
    rig.add("a", rollout_versions=(), evaluation_versions=(0,))
    rig.compute("a")
    rig.submit(*gradients(2))
    assert rig.grants() == []
    rig.report("a", rollout_versions=(0,))
    assert granted(rig)[0] == 1


@pytest.mark.parametrize("why", ["trains", "leaves"])
def test_a_worker_that_trains_or_leaves_is_given_none(rig: Rig, why: str) -> None:
    rig.add("a")
    rig.compute("a")
    if why == "trains":
        rig.bar("a")
    else:
        rig.leave("a")
    rig.submit(*gradients(2))
    assert rig.grants() == []


# --- who does both ---


def test_who_computes_denoises_only_while_there_is_no_gradient(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.compute("a", versatile=["a"])
    rig.submit(*gradients(1), *requests(4, "preview"))
    assert granted(rig) == [0]
    rig.computed(rig.last())
    assert ids(rig.last()) == ids(requests(4, "preview"))


def test_who_denoises_computes_only_while_there_is_nothing_else(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.compute(versatile=["a"])
    rig.submit(*requests(4, "preview"), *gradients(2))
    previews = rig.last()
    assert ids(previews) == ids(requests(4, "preview"))
    rig.complete(previews)
    assert granted(rig)[-1] == 1


def test_a_gradient_goes_to_who_computes_before_others_that_are_free(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.add("b", credits=1)
    rig.compute("b", versatile=["a", "b"])
    rig.submit(*gradients(2))
    assert (granted(rig, "b"), granted(rig, "a")) == ([1], [0])


@pytest.mark.parametrize("kind", ["evaluation", "random"])
def test_who_computes_is_given_nothing_long_meanwhile_that_training_does_not_wait_for(
    rig: Rig, kind: RequestKind
) -> None:
    rig.add("a", credits=1)
    rig.compute("a", versatile=["a"])
    rig.submit(*requests(4, kind))
    assert rig.grants() == []
    rig.compute()
    assert len(rig.grants()) == 1


def test_who_computes_previews_meanwhile_though_random_seeds_come_first(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.compute("a", versatile=["a"])
    rig.submit(*requests(4, "random"), *requests(4, "preview"))
    assert ids(rig.last()) == ids(requests(4, "preview"))


def test_who_is_behind_with_scores_computes_meanwhile(rig: Rig) -> None:
    rig.add("a", credits=1, batch=2)
    rig.compute(versatile=["a"])
    rig.submit(*requests(6, "preview"), *gradients(1))
    for _ in range(2):
        rig.commit(rig.last(), step=STEPS)
    assert granted(rig)[-1] == 0
    assert len(rig.grants("a")) == 3


def test_a_group_of_several_denoises_and_computes_nothing(rig: Rig) -> None:
    rig.lead("a", "b", credits=1)
    rig.compute(versatile=["a", "b"])
    rig.submit(*gradients(1))
    assert rig.grants() == []


def test_who_previews_while_there_is_no_gradient_counts_among_those_that_preview(rig: Rig) -> None:
    rig.add("a")
    rig.add("b")
    rig.compute("a")
    assert (rig.table.free_groups, rig.table.previewing_groups) == (1, 1)
    rig.compute("a", versatile=["a"])
    assert (rig.table.free_groups, rig.table.previewing_groups) == (1, 2)


def test_what_a_batch_takes_is_known_where_all_preview_while_there_is_no_gradient(
    rig: Rig,
) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(4, "preview"))
    rig.complete(rig.last())
    rig.compute("a")
    assert rig.table.batch_s(SETTINGS) is None
    rig.compute("a", versatile=["a"])
    assert rig.table.batch_s(SETTINGS) is not None


# --- what is counted ---


def test_gradients_are_in_no_backlog_and_those_who_compute_are_no_free_groups(rig: Rig) -> None:
    computing(rig, "a")
    rig.add("b", credits=0)
    assert rig.table.backlog() == ()
    assert rig.table.free_groups == 1
    rig.compute()
    assert rig.table.free_groups == 2


def test_nothing_of_a_gradient_is_written_down(rig: Rig) -> None:
    computing(rig, "a", slices=2)
    rig.fail(rig.last())
    rig.computed(rig.last())
    rig.cancel("gradient")
    assert rig.all(Persist) == [] and rig.journal == {}


def test_a_gradient_is_not_deleted_once_it_is_told_as_its_rank_fetches_it(rig: Rig) -> None:
    computing(rig, "a", slices=1)
    assert rig.computed(rig.last()).accepted == 1
    (told,) = rig.all(RequestsFinished)
    assert told.results[0].bundle.key == f"gradients/a/{rig.last().lease}"
    assert rig.all(DeleteBundle) == []


def test_a_gradient_with_a_reward_does_not_count(rig: Rig) -> None:
    computing(rig, "a", slices=1)
    grant = rig.last()
    assert rig.complete(grant, 0.5).accepted == 0
    assert rig.finished() == {}
    rig.wait(11)
    rig.report("a", credits=1)
    assert rig.computed(rig.last()).accepted == 1


def test_a_gradient_that_is_told_twice_counts_once(rig: Rig) -> None:
    computing(rig, "a", slices=1)
    assert rig.computed(rig.last()).accepted == 1
    assert not rig.computed(rig.last()).ask_again
    assert len(rig.finished()) == 1


def test_a_gradient_says_nothing_of_how_fast_samples_are_denoised_or_scored(rig: Rig) -> None:
    computing(rig, "a", slices=1)
    pace = rig.table.pace
    pace.scored(1.0)
    before = pace.score_s
    rig.computed(rig.last(), seconds=7.0)
    assert pace.slice_s == 7.0
    assert pace.score_s == before
    assert rig.profile.measured == []


# --- what goes wrong ---


def test_a_gradient_of_a_worker_that_is_not_heard_goes_to_another_and_the_first_answer_counts(
    rig: Rig,
) -> None:
    computing(rig, "a", slices=1)
    late = rig.last()
    rig.add("b", credits=1)
    rig.compute("a", "b")
    for _ in range(round(LEASE_S) + 2):
        rig.wait(1)
        rig.report("b", credits=1)
    assert granted(rig, "b") == [0]
    assert rig.computed(rig.last("b")).accepted == 1
    assert rig.computed(late).accepted == 0
    assert len(rig.finished()) == 1
    assert len(rig.events(ResultsIgnored)) == 1


def test_a_lost_worker_costs_its_slice_which_another_computes_first(rig: Rig) -> None:
    computing(rig, "a", slices=3)
    rig.lose("a")
    rig.add("b", credits=1)
    rig.compute("b")
    assert granted(rig, "b") == [2]


def test_a_slice_that_fails_is_tried_again_then_given_up(rig: Rig) -> None:
    computing(rig, "a", "b", "c", slices=1)
    for _ in range(3):
        rig.fail(rig.last())
        rig.wait(1)
        for name in "abc":
            rig.report(name, credits=1)
    assert rig.given_up() == ids(gradients(1))
    assert rig.table.open("gradient") == 0
    assert rig.journal == {}


def test_a_slice_with_which_every_node_was_lost_is_given_up_and_no_sample_is_missed(
    rig: Rig,
) -> None:
    rig.compute("a", "b", "c")
    rig.submit(*gradients(1))
    for name in "abc":
        rig.add(name, credits=1)
        assert granted(rig, name) == [0]
        rig.lose(name, ended=True)
    assert rig.given_up() == ids(gradients(1))
    assert rig.events(RequestGivenUp) == []


def test_gradients_that_nobody_needs_any_more_are_revoked(rig: Rig) -> None:
    computing(rig, "a", slices=3)
    held = rig.last()
    rig.cancel("gradient")
    assert rig.revoked() == [held.lease]
    assert rig.table.open("gradient") == 0
    assert rig.computed(held).accepted == 0
    assert rig.finished() == {}


def test_the_next_update_is_given_out_as_soon_as_the_one_before_is_revoked(rig: Rig) -> None:
    computing(rig, "a", slices=3)
    rig.cancel("gradient")
    rig.report("a", credits=1)
    rig.submit(*gradients(3, update=1))
    assert [one.seed for one in rig.last("a").requests] == [1]


def test_a_slice_that_takes_far_too_long_moves_to_another_worker(rig: Rig) -> None:
    computing(rig, "a", slices=2)
    rig.computed(rig.last(), seconds=2.0)
    slow = rig.last()
    rig.add("b", credits=1)
    rig.compute("a", "b")
    rig.wait(6, slow, credits=1)
    assert rig.recalled() == [], "three times as long is not far too long"
    rig.wait(4, slow, credits=1)
    assert rig.recalled() == [slow.lease]
    rig.give_back(slow)
    assert (rig.last().worker, ids(rig.last())) == ("b", ids(slow))


def test_nobody_is_slow_while_it_is_not_known_how_long_a_slice_takes(rig: Rig) -> None:
    computing(rig, "a", "b", slices=1)
    rig.wait(60, rig.last(), credits=1)
    assert rig.recalled() == []


def test_what_a_leaving_worker_computes_is_recalled_for_another_that_is_idle(rig: Rig) -> None:
    computing(rig, "a", "b", slices=1)
    grant = rig.last()
    rig.leave(grant.worker)
    assert rig.recalled() == [grant.lease]
    rig.give_back(grant)
    assert rig.last().worker != grant.worker


# --- another coordinator ---


def test_a_worker_goes_on_with_its_slice_when_the_rank_tells_another_coordinator_of_it(
    rig: Rig,
) -> None:
    computing(rig, "a", slices=2)
    grant = rig.last()
    rig.restart()
    rig.join("a")
    rig.compute("a")
    rig.submit(*requests(1, "evaluation"))  # the coordinator has begun
    rig.submit(*gradients(2))
    rig.report("a", grant, credits=1)
    assert rig.computed(grant).accepted == 1
    assert list(rig.finished()) == ids(grant)


def test_a_slice_that_no_rank_has_told_of_is_dropped_after_a_restart(rig: Rig) -> None:
    computing(rig, "a", slices=2)
    grant = rig.last()
    rig.restart()
    rig.join("a")
    rig.submit(request(0, "evaluation"))
    rig.report("a", grant, credits=1)
    assert grant.lease in rig.revoked()
    assert not rig.computed(grant).ask_again


def test_finished_gradients_are_forgotten_with_their_iteration(rig: Rig) -> None:
    computing(rig, "a", slices=2)
    while rig.table.open("gradient"):
        rig.computed(rig.last())
    late = rig.last()
    rig.forget("gradient", 0)
    assert rig.computed(late).accepted == 0
    rig.submit(*gradients(2))
    assert rig.table.open("gradient") == 2, "nothing of them is known any more"


def test_a_gradient_that_failed_is_reported_as_one(rig: Rig) -> None:
    computing(rig, "a")
    rig.fail(rig.last())
    (event,) = rig.events(GradientFailed)
    assert (event.worker, event.error) == ("a", "broken")
    assert rig.events(DenoiseFailed) == []


def test_who_fails_gradients_that_others_compute_previews_and_is_given_no_more(rig: Rig) -> None:
    computing(rig, "a", "b", slices=9)
    for _ in range(3):
        rig.fail(rig.last("a"))
    while rig.table.open("gradient"):
        rig.computed(rig.last("b"))
    assert len(granted(rig, "a")) == 3
    assert rig.events(WorkerIsSick) == []
    rig.submit(*requests(4, "preview"))
    assert {one.kind for one in rig.last("a").requests} == {"preview"}


def test_who_fails_a_gradient_now_and_then_is_given_others(rig: Rig) -> None:
    computing(rig, "a", slices=7)
    for _ in range(2):
        for _ in range(2):
            rig.fail(rig.last("a"))
        rig.computed(rig.last("a"))
    assert not rig.table.fails_gradients("a")


def test_a_process_that_failed_gradients_says_nothing_of_the_next_one(rig: Rig) -> None:
    computing(rig, "a", slices=9)
    for _ in range(3):
        rig.fail(rig.last("a"))
    assert rig.table.fails_gradients("a")
    rig.lose("a")
    rig.add("a", credits=1)
    assert not rig.table.fails_gradients("a")


def test_a_worker_is_not_blamed_for_weights_and_samples_of_slices_that_are_gone(rig: Rig) -> None:
    computing(rig, "a", slices=9)
    for _ in range(4):
        rig.fail(rig.last("a"), what="commits")
    assert not rig.table.fails_gradients("a")
