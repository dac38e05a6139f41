"""Requests that are scored together: denoised anywhere, then granted to one worker at once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from table_rig import SETTINGS, STEPS, Rig, ids, images, request, steps

from spotlight.policies.requests.instructions import Answer, GrantLease
from spotlight.record.run_events import ScorerFailed
from spotlight.types import Request

ROWS = SETTINGS.micro_batch


def group(size: int, number: int = 0, first: int = 0) -> list[Request]:
    seeds = tuple(range(first, first + size))
    return [request(seed, group=number, scored_with=seeds) for seed in seeds]


def denoise(rig: Rig, grant: GrantLease) -> Answer:
    """Its worker has taken all steps, and leaves scoring to whoever gets the whole group."""
    return rig.complete(grant, rewards=())


def to_score(rig: Rig) -> list[GrantLease]:
    """The leases of which only the rewards are missing."""
    return [grant for grant in rig.grants() if set(steps(grant)) == {STEPS}]


@pytest.fixture
def two(rig: Rig) -> Rig:
    """Two workers, and a group of two batches: each has one."""
    rig.add("first")
    rig.add("second")
    rig.submit(*group(2 * ROWS))
    return rig


def test_a_group_is_scored_by_one_worker_once_all_of_it_is_denoised(two: Rig) -> None:
    first, second = two.last("first"), two.last("second")
    denoise(two, first)
    assert to_score(two) == [], "the other half is not there"
    denoise(two, second)
    [grant] = to_score(two)
    assert ids(grant) == [one.id for one in group(2 * ROWS)], "in the order of its seeds"
    two.complete(grant)
    assert set(two.finished()) == set(ids(grant))
    assert set(two.deleted()) == {images(first).key, images(second).key}, "they are in one now"


def test_groups_do_not_wait_for_each_other(rig: Rig) -> None:
    rig.add("first")
    rig.submit(*group(ROWS), *group(ROWS, number=1))
    denoise(rig, rig.last())
    [grant] = to_score(rig)
    assert {one.group for one in grant.requests} == {0}


def lose(rig: Rig, grant: GrantLease) -> None:
    rig.lose(grant.worker)


def give_back(rig: Rig, grant: GrantLease) -> None:
    rig.give_back(grant)


def fail(rig: Rig, grant: GrantLease) -> None:
    rig.fail(grant, what="scoring")


@pytest.mark.parametrize("end", [lose, give_back, fail])
def test_a_group_that_is_not_scored_is_granted_again_as_a_whole(
    two: Rig, end: Callable[[Rig, GrantLease], None]
) -> None:
    for grant in (two.last("first"), two.last("second")):
        denoise(two, grant)
    [before] = to_score(two)
    end(two, before)
    [_, again] = to_score(two)
    assert ids(again) == ids(before)


def test_a_request_that_is_given_up_is_not_waited_for(two: Rig) -> None:
    lost = two.last("first")
    denoise(two, two.last("second"))
    while not two.given_up():
        two.fail(next(one for one in reversed(two.grants()) if ids(one) == ids(lost)))
    assert set(two.given_up()) == set(ids(lost))
    [grant] = to_score(two)
    assert not set(ids(grant)) & set(ids(lost))


@pytest.mark.parametrize("size", [2, 3])
def test_an_image_that_is_left_alone_is_given_up_in_one_line_and_never_scored(
    rig: Rig, size: int
) -> None:
    rig.add("first", batch=1, credits=1)
    wanted = group(size)
    rig.submit(*wanted)
    for _ in wanted[1:]:
        denoise(rig, rig.last())
    [failing] = ids(rig.last())
    while not rig.given_up():
        rig.fail(rig.last())
    assert len(to_score(rig)) == (size > 2), "two that are left are compared"
    alone = [one for one in rig.given_up() if one != failing]
    assert len(alone) == (size == 2)
    assert [event.request for event in rig.events(ScorerFailed)] == alone


def test_a_restarted_coordinator_knows_of_an_image_that_was_left_alone(rig: Rig) -> None:
    wanted = group(2)
    rig.add("first", batch=1, credits=1)
    rig.submit(*wanted)
    denoise(rig, rig.last())
    while not rig.given_up():
        rig.fail(rig.last())
    rig.restart()
    rig.add("first")
    rig.submit(*wanted)
    assert set(rig.given_up()) == set(ids(wanted))
    assert rig.grants() == []


def test_of_a_group_only_what_is_lost_is_made_again(two: Rig) -> None:
    first, second = two.last("first"), two.last("second")
    for grant in (first, second):
        denoise(two, grant)
    [whole] = to_score(two)
    two.fail(whole, *ids(second), what="commits")
    again = two.last()
    assert set(ids(again)) == set(ids(second))
    assert set(steps(again)) == {0}
    assert two.deleted() == [images(second).key]
    denoise(two, again)
    assert ids(to_score(two)[-1]) == ids(whole)


def test_a_group_that_nobody_wants_is_not_scored(two: Rig) -> None:
    denoise(two, two.last("first"))
    two.cancel("rollout")
    two.report("first")
    two.report("second")
    assert to_score(two) == []


def test_what_is_told_twice_counts_once(two: Rig) -> None:
    first, second = two.last("first"), two.last("second")
    assert denoise(two, first) == Answer(ROWS)
    assert denoise(two, first) == Answer(0)
    denoise(two, second)
    [grant] = to_score(two)
    two.complete(grant)
    assert len(two.finished()) == 2 * ROWS


def test_a_worker_that_still_names_what_it_has_denoised_does_not_keep_it(two: Rig) -> None:
    first, second = two.last("first"), two.last("second")
    denoise(two, first)
    two.report("first", first)
    denoise(two, second)
    assert len(to_score(two)) == 1


def test_one_without_a_group_needs_its_rewards(rig: Rig) -> None:
    rig.add("first")
    rig.submit(request(0))
    denoise(rig, rig.last())
    assert rig.finished() == {}
    assert steps(rig.last()) == [0], "it failed there, and is tried again"


def test_a_restarted_coordinator_goes_on_with_what_is_denoised(two: Rig) -> None:
    first = two.last("first")
    denoise(two, first)
    two.restart()
    two.add("first")
    two.submit(*group(2 * ROWS))
    rest = two.last("first")
    assert set(ids(rest)).isdisjoint(ids(first)), "half of it need not be denoised again"
    denoise(two, rest)
    [grant] = to_score(two)
    assert ids(grant) == [one.id for one in group(2 * ROWS)]


def test_a_restarted_coordinator_keeps_the_rewards_of_a_group(two: Rig) -> None:
    for grant in (two.last("first"), two.last("second")):
        denoise(two, grant)
    two.complete(to_score(two)[0])
    two.restart()
    two.add("first")
    two.submit(*group(2 * ROWS))
    assert len(two.finished()) == 2 * ROWS
    assert two.grants() == []


def test_previews_of_a_group_are_a_group_of_their_own_when_they_are_asked_for_again(
    rig: Rig,
) -> None:
    rig.add("first")
    seeds = (0, 1)
    previews = [request(seed, "preview", scored_with=seeds) for seed in seeds]
    rig.submit(*previews)
    rig.cancel()
    rig.submit(*previews)
    denoise(rig, rig.last())
    assert ids(to_score(rig)[0]) == ids(previews)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_each_group_is_scored_as_a_whole_and_once(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig()
    for name in "abc":
        rig.add(name, batch=rng.randint(1, 5))
    wanted = [one for number in range(4) for one in group(rng.randint(2, 7), number)]
    rig.submit(*wanted)
    open_grants: dict[int, GrantLease] = {}
    seen = 0
    for _ in range(400):
        grants = rig.grants()
        open_grants |= {grant.lease: grant for grant in grants[seen:]}
        seen = len(grants)
        if not open_grants:
            break
        grant = open_grants.pop(rng.choice(sorted(open_grants)))
        is_denoised = set(steps(grant)) == {STEPS}
        whole = [one for one in wanted if one.group == grant.requests[0].group]
        assert not is_denoised or ids(grant) == ids(whole)
        match rng.randrange(5):
            case 0:
                rig.give_back(grant)
            case 1:
                rig.lose(grant.worker, announced=True)
                open_grants = {k: g for k, g in open_grants.items() if g.worker != grant.worker}
                rig.add(grant.worker, epoch=rig.epochs[grant.worker] + 1)
            case _ if is_denoised or ids(grant) == ids(whole):
                rig.complete(grant)
            case _:
                denoise(rig, grant)
        for name in "abc":
            held = [one for one in open_grants.values() if one.worker == name]
            rig.report(name, *held, batch=rng.randint(1, 5))
    assert set(rig.finished()) == {one.id for one in wanted}


def serve(rig: Rig, grant: GrantLease) -> None:
    """Its worker does as workers do: whoever has a whole group, or has it denoised, scores."""
    seeds = {(one.group, one.seed) for one in grant.requests}
    first = grant.requests[0]
    is_whole = seeds == {(first.group, seed) for seed in first.scored_with}
    if is_whole or set(steps(grant)) == {STEPS}:
        rig.complete(grant)
    else:
        denoise(rig, grant)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_fails_or_is_unwanted_and_whoever_restarts_every_group_comes_to_an_end(
    seed: int,
) -> None:
    rng = random.Random(seed)
    rig = Rig()
    for name in "abc":
        rig.add(name, batch=rng.randint(1, 5))
    wanted = [one for number in range(4) for one in group(rng.randint(2, 7), number)]
    rig.submit(*wanted)
    known: dict[int, GrantLease] = {}
    served: list[GrantLease] = []
    for _ in range(600):
        known |= {grant.lease: grant for grant in rig.grants()}
        held = [known[lease.number] for lease in rig.table.leases()]
        if not held:
            break
        grant = rng.choice(held)
        match rng.randrange(12):
            case 0:
                rig.restart()
                for name in "abc":
                    rig.join(name, rig.epochs[name])
                rig.submit(*wanted)
            case 1:
                rig.fail(grant, what="scoring")
            case 2:
                rig.fail(grant, what="commits")
            case 3:
                rig.fail(grant, *rng.sample(ids(grant), rng.randint(0, len(ids(grant)))))
            case 4:
                unwanted, wanted = wanted[:2], wanted[2:]
                rig.carry_out(rig.table.release(ids(unwanted), rig.now))
            case 5 if served:
                serve(rig, rng.choice(served))
            case _:
                serve(rig, grant)
                served.append(grant)
        held = [known[lease.number] for lease in rig.table.leases() if lease.number in known]
        for name in "abc":
            rig.report(name, *[one for one in held if one.worker == name], batch=rng.randint(1, 5))
    assert rig.table.open("rollout") == 0
