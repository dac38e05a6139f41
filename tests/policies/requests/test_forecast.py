"""When requests in work will be done."""

from __future__ import annotations

import pytest
from table_rig import SETTINGS, STEPS, Rig, requests

from spotlight.policies.requests.instructions import Answer

ITERATION = 0
"""Of the requests of a rig, unless they say otherwise."""


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.profile.known[1] = 2.0
    return rig


def soon(rig: Rig) -> list[tuple[float, int]]:
    return [tuple(arrival) for arrival in rig.table.arrivals("preview", ITERATION, rig.now)]


def test_what_was_begun_is_done_after_the_steps_that_are_left(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(4, "preview"))
    assert soon(rig) == [(STEPS * 2.0, 4)]
    rig.now += 3.0
    assert soon(rig) == [(STEPS * 2.0 - 3.0, 4)]


def test_a_commit_on_the_way_changes_nothing_of_when_it_is_done(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(4, "preview"))
    rig.now += 5.0
    rig.commit(rig.last(), 2)
    assert soon(rig) == [(STEPS * 2.0 - 5.0, 4)]


def test_what_is_for_another_iteration_is_left_out(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(4, "preview", iteration=ITERATION + 1))
    assert soon(rig) == []


def test_what_goes_on_from_a_commit_is_done_sooner(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(4, "preview"))
    rig.commit(rig.last(), 2)
    rig.lose("a")
    rig.add("b", credits=1)
    assert soon(rig) == [((STEPS - 2) * 2.0, 4)]


def test_what_waits_at_a_worker_is_done_after_what_it_works_on(rig: Rig) -> None:
    rig.add("a", credits=2)
    rig.submit(*requests(40, "preview"))
    rig.now += 1.0
    assert soon(rig) == [(STEPS * 2.0 - 1.0, 4), (2 * STEPS * 2.0 - 1.0, 4)]


def test_the_next_batch_begins_when_the_one_before_is_denoised(rig: Rig) -> None:
    rig.add("a", credits=2)
    rig.submit(*requests(40, "preview"))
    first, _ = rig.grants()
    rig.now += STEPS * 2.0
    rig.commit(first, STEPS)
    assert soon(rig) == [(0.0, 4), (STEPS * 2.0, 4), (2 * STEPS * 2.0, 4)]


def test_what_is_overdue_may_come_at_any_time(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(4, "preview"))
    rig.now += 10 * STEPS * 2.0
    assert soon(rig) == [(0.0, 4)]


def test_scoring_takes_time_as_well(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(4, "preview"))
    rig.complete(rig.last(), scoring_s=10.0, seconds=STEPS * 2.0)
    rig.submit(*requests(8, "preview"))
    ((in_s, count),) = soon(rig)
    assert count == 4
    assert STEPS * 2.0 < in_s < STEPS * 2.0 + 10.0, "it follows the times of late"


def test_other_kinds_are_not_told_of_but_take_their_time(rig: Rig) -> None:
    rig.add("a", credits=2)
    rig.submit(*requests(4), *requests(40, "preview"))
    assert soon(rig) == [(2 * STEPS * 2.0, 4)]


def test_nothing_is_foretold_where_no_pace_is_known() -> None:
    rig = Rig()
    rig.add("a")
    rig.submit(*requests(4, "preview"))
    assert soon(rig) == []


def test_what_nobody_works_on_can_be_withdrawn(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(8, "preview"), *requests(2, "evaluation"))
    withdrawn, instructions = rig.table.withdraw("preview", rig.now)
    rig.carry_out(instructions)
    assert [one.id for one in withdrawn] == [one.id for one in requests(8, "preview")[4:]]
    assert rig.table.open("preview") == 4
    assert rig.table.open("evaluation") == 2


def test_a_batch_behind_another_is_withdrawn_from_its_worker(rig: Rig) -> None:
    rig.add("a", credits=2)
    rig.submit(*requests(40, "preview"))
    first, second = rig.grants()
    withdrawn, instructions = rig.table.withdraw("preview", rig.now)
    rig.carry_out(instructions)
    assert len(withdrawn) == 36
    assert rig.revoked() == [second.lease]
    assert soon(rig) == [(STEPS * 2.0, 4)]
    assert rig.complete(first) == Answer(4)


def test_a_batch_takes_all_of_its_steps(rig: Rig) -> None:
    rig.add("a", credits=1)
    assert rig.table.batch_s(SETTINGS) == STEPS * 2.0
    rig.submit(*requests(4, "preview"))
    rig.complete(rig.last())
    assert rig.table.batch_s(SETTINGS) == pytest.approx(STEPS * 1.0, abs=0.1), "as it was measured"


def test_nobody_knows_how_long_a_batch_takes_before_a_step_was_measured() -> None:
    rig = Rig()
    rig.add("a")
    assert rig.table.batch_s(SETTINGS) is None
