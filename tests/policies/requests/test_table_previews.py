"""The table of requests where previews may be trained on."""

from __future__ import annotations

import pytest
from table_rig import Rig, images, request, requests

from spotlight.policies.requests.instructions import Answer


@pytest.fixture
def rig() -> Rig:
    return Rig(trained_on=("rollout", "preview"))


def test_the_samples_of_previews_that_may_be_trained_on_stay(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(2, "preview", iteration=1))
    rig.complete(rig.last(), 0.25, 1.0)
    assert rig.deleted() == []
    first, second = rig.table.previewed(1, requests(2, "preview", iteration=1))
    assert first is not None and second is not None
    assert [first.rewards, second.rewards] == [(0.25,), (1.0,)]
    assert (first.bundle, first.row, second.row) == (images(rig.last()), 0, 1)


def test_a_sample_goes_when_no_preview_of_its_bundle_is_wanted(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(2, "preview", iteration=1))
    rig.complete(rig.last())
    first, second = requests(2, "preview", iteration=1)
    rig.carry_out(rig.table.release([first.id], rig.now))
    assert rig.deleted() == []
    assert rig.table.previewed(1, [first, second])[0] is None
    rig.carry_out(rig.table.release([second.id], rig.now))
    assert rig.deleted() == [images(rig.last()).key]


def test_a_preview_that_an_earlier_table_had_done_has_its_sample(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(2, "preview", iteration=1))
    grant = rig.last()
    rig.complete(grant, 0.25, 1.0)
    rig.restart()
    chosen = [request(seed, "preview", iteration=1) for seed in (1, 9)]
    done, other = rig.table.previewed(1, chosen)
    assert done is not None
    assert (done.rewards, done.row, done.bundle) == ((1.0,), 1, images(grant))
    assert other is None


def test_previews_of_an_iteration_whose_seeds_are_chosen_come_too_late(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(4, "preview", iteration=1))
    grant = rig.last()
    rig.restart()
    rig.submit(request(0, "evaluation", 0))
    rig.join("a")
    assert rig.complete(grant) == Answer(0, ask_again=True), "it may yet be submitted"
    rig.table.previewed(1, [])
    assert rig.complete(grant) == Answer(0)


def test_an_evaluation_grows_urgent_though_only_previews_are_submitted(rig: Rig) -> None:
    rig.submit(request(0, "evaluation", 0))
    rig.table.previewed(3, [])
    rig.submit(request(0, "preview", iteration=4))
    rig.add("a", credits=1, rollout_versions=(4,))
    assert rig.last().requests[0].kind == "evaluation"


def test_rollouts_of_iterations_before_may_not_come_though_none_is_ever_submitted(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(4, iteration=0))
    grant = rig.last()
    rig.restart()
    rig.join("a")
    rig.table.previewed(2, [])
    assert rig.complete(grant) == Answer(0)
    assert rig.revoked() == [grant.lease]


def test_what_is_finished_ahead_may_yet_be_submitted_until_the_seeds_are_chosen(rig: Rig) -> None:
    """Though rollouts of the iteration before were."""
    rig.add("a", rollout_versions=(0, 1))
    rig.submit(*requests(4, iteration=2, version=1))
    grant = rig.last()
    rig.restart()
    rig.submit(*requests(4, iteration=1))
    rig.join("a")
    assert rig.complete(grant) == Answer(0, ask_again=True)
    rig.submit(*requests(4, iteration=2, version=1))
    assert rig.complete(grant) == Answer(4)


def test_what_is_not_chosen_any_more_is_dropped(rig: Rig) -> None:
    rig.add("a", rollout_versions=(0, 1))
    rig.submit(*requests(4, iteration=2, version=1))
    grant = rig.last()
    rig.restart()
    rig.submit(*(request(seed, iteration=2, version=1) for seed in (8, 9)))
    rig.join("a")
    assert rig.complete(grant) != Answer(0, ask_again=True)
    assert images(grant).key in rig.deleted()
