"""The table of requests: requests that fail, and requests that end their workers."""

from __future__ import annotations

import pytest
from table_rig import STEPS, Rig, ids, images, request, requests, steps

from spotlight.policies.requests.instructions import RequestsGivenUp
from spotlight.record.run_events import DenoiseFailed, RequestGivenUp, ScorerFailed


@pytest.mark.parametrize("what", ["denoising", "scoring"])
def test_a_failing_batch_is_tried_again_then_given_up_and_never_a_reward(
    rig: Rig, what: str
) -> None:
    rig.add("a")
    rig.submit(*requests(2))
    for attempt in range(3):
        assert len(rig.grants()) == attempt + 1
        rig.fail(rig.last(), what=what)
    assert len(rig.grants()) == 3
    assert rig.finished() == {}
    (told,) = rig.all(RequestsGivenUp)
    assert (told.requests, told.reason) == (requests(2), "broken")
    assert len(rig.events(ScorerFailed if what == "scoring" else DenoiseFailed)) == 3
    assert rig.table.open("rollout") == 0
    rig.submit(*requests(2))
    assert len(rig.grants()) == 3, "it is over"


def test_of_failures_alike_in_a_row_one_keeps_the_traceback() -> None:
    rig = Rig(score_attempts=5)
    rig.add("a")
    rig.submit(request(0))
    for traceback in ("here", "here", "there", "here"):
        rig.fail(rig.last(), what="scoring", traceback=traceback)
    assert [event.traceback for event in rig.events(ScorerFailed)] == ["here", "", "there", "here"]


def test_scoring_is_tried_as_often_as_the_job_says() -> None:
    rig = Rig(score_attempts=5)
    rig.add("a")
    rig.submit(request(0))
    for _ in range(5):
        assert rig.given_up() == []
        rig.fail(rig.last(), what="scoring")
    assert rig.given_up() == [request(0).id]


@pytest.mark.parametrize(
    "rewards",
    [
        ((0.5,),),
        ((0.5,), (0.5,), (0.5,)),
        (),
        ((0.5,), (1.5,)),
        ((-0.1,), (0.5,)),
        ((float("nan"),), (0.5,)),
        ((0.5, 0.5), (0.5, 0.5)),
        ((0.5,), ()),
    ],
)
def test_rewards_that_are_nonsense_are_a_failed_attempt(
    rig: Rig, rewards: tuple[tuple[float, ...], ...]
) -> None:
    rig.add("a")
    rig.submit(*requests(2))
    rig.commit(rig.last(), STEPS)
    assert rig.complete(rig.last(), rewards=rewards).accepted == 0
    assert rig.finished() == {}
    assert len(rig.events(ScorerFailed)) == 1
    assert steps(rig.last()) == [STEPS] * 2
    assert rig.complete(rig.last(), 0.25, 0.75).accepted == 2


@pytest.mark.parametrize("how", ["lose", "give back", "expire"])
def test_only_failures_count_as_failures(rig: Rig, how: str) -> None:
    rig.submit(request(0))
    for number in range(9):
        rig.add(f"w{number}")
        match how:
            case "lose":
                rig.lose(f"w{number}")
            case "give back":
                rig.leave(f"w{number}")
                rig.give_back(rig.last())
            case "expire":
                rig.wait(15)
    rig.add("last")
    rig.fail(rig.last("last"))
    assert rig.given_up() == []


def test_what_fails_by_itself_is_given_up_without_the_others_of_its_batch(rig: Rig) -> None:
    rig.add("a", credits=1)
    wanted = requests(4)
    bad = wanted[1].id
    rig.submit(*wanted)
    while rig.table.open("rollout"):
        grant = rig.last()
        if bad in ids(grant):
            rig.fail(grant, bad)
        else:
            rig.complete(grant)
    assert rig.given_up() == [bad]
    assert sorted(len(grant.requests) for grant in rig.grants()) == [1, 1, 3, 4]
    assert [event.requests for event in rig.events(DenoiseFailed)] == [(bad,)] * 3


def test_failures_of_requests_that_are_not_in_the_lease_are_those_of_all_its_requests(
    rig: Rig,
) -> None:
    rig.add("a")
    rig.submit(request(0))
    for _ in range(3):
        rig.fail(rig.last(), "else")
    assert rig.given_up() == [request(0).id]


# --- where it failed ---


def two(rig: Rig) -> tuple[str, str]:
    """Who has the only request that there is, and another one."""
    rig.add("a", credits=1)
    rig.add("b", credits=1)
    rig.submit(request(0))
    holder = rig.last().worker
    return holder, "b" if holder == "a" else "a"


def test_others_try_what_failed_at_a_worker_before_that_worker_does(rig: Rig) -> None:
    _, other = two(rig)
    rig.fail(rig.last())
    assert rig.last().worker == other


def test_a_worker_waits_with_what_failed_there_while_others_lead_groups(rig: Rig) -> None:
    holder, other = two(rig)
    rig.report(other, credits=0)
    rig.fail(rig.last())
    rig.wait(9)
    assert len(rig.grants()) == 1
    rig.wait(1)
    assert [grant.worker for grant in rig.grants()] == [holder] * 2


def test_what_failed_does_not_keep_a_worker_from_other_requests(rig: Rig) -> None:
    holder, other = two(rig)
    rig.report(other, credits=0)
    rig.fail(rig.last())
    rig.submit(request(1))
    assert (rig.last().worker, ids(rig.last())) == (holder, [request(1).id])


def test_a_worker_that_is_alone_tries_again_at_once(rig: Rig) -> None:
    holder, other = two(rig)
    rig.lose(other)
    rig.fail(rig.last())
    assert [grant.worker for grant in rig.grants()] == [holder] * 2


def test_what_failed_everywhere_may_be_tried_anywhere(rig: Rig) -> None:
    two(rig)
    rig.fail(rig.last())
    rig.fail(rig.last())
    assert len(rig.grants()) == 3


def test_what_failed_at_one_worker_and_came_back_from_another_is_not_kept_away_for_ever(
    rig: Rig,
) -> None:
    holder, other = two(rig)
    rig.fail(rig.last())
    rig.wait(12, rig.last(other), credits=1)
    rig.bar(other)
    rig.report(holder, credits=1)
    rig.give_back(rig.last(other))
    rig.wait(60)
    assert rig.last().worker == holder


def test_what_failed_at_workers_that_are_gone_is_tried_by_others_first(rig: Rig) -> None:
    two(rig)
    rig.add("c", credits=0)
    rig.fail(rig.last())
    gone = rig.last().worker
    rig.fail(rig.last())
    rig.lose(gone)
    rig.wait(3)
    assert len(rig.grants()) == 2


# --- what may have ended its worker ---


def test_a_request_that_was_held_by_three_lost_nodes_is_given_up(rig: Rig) -> None:
    rig.submit(request(0))
    for number in range(3):
        rig.add(f"w{number}")
        assert len(rig.grants(f"w{number}")) == 1
        rig.lose(f"w{number}", ended=True)
    rig.add("survivor")
    assert rig.grants("survivor") == []
    assert rig.given_up() == rig.tally.given_up == [request(0).id]
    assert len(rig.events(RequestGivenUp)) == 1
    rig.submit(request(0))
    assert rig.grants("survivor") == []


def test_a_batch_whose_scoring_ended_three_nodes_is_given_up(rig: Rig) -> None:
    rig.submit(request(0))
    for number in range(3):
        rig.add(f"w{number}")
        rig.commit(rig.last(f"w{number}"), STEPS)
        rig.lose(f"w{number}", ended=True)
    assert rig.given_up() == [request(0).id]
    assert images(rig.grants()[0]).key in rig.deleted()


def test_requests_that_two_lost_nodes_held_are_leased_alone_and_the_innocent_are_done(
    rig: Rig,
) -> None:
    rig.submit(*requests(3))
    poison = request(1).id
    for number in range(2):
        rig.add(f"w{number}")
        assert len(rig.last().requests) == 3
        rig.lose(f"w{number}", ended=True)
    rig.add("third", credits=1)
    while rig.table.open("rollout"):
        assert len(rig.last().requests) == 1
        if ids(rig.last()) == [poison]:
            rig.lose(rig.last().worker, ended=True)
            rig.add("fourth", credits=1)
        else:
            rig.complete(rig.last())
    assert (rig.given_up(), len(rig.finished())) == ([poison], 2)


def test_the_same_node_lost_again_and_again_is_one_loss(rig: Rig) -> None:
    rig.submit(request(0))
    for _ in range(9):
        rig.add("flapping")
        rig.lose("flapping", ended=True)
    assert rig.given_up() == []


def test_one_that_never_said_it_had_a_lease_and_is_out_of_reach_makes_nothing_suspect(
    rig: Rig,
) -> None:
    """As when a coordinator stood still: everybody who is given the request is gone already."""
    rig.submit(request(0))
    for number in range(9):
        rig.add(f"w{number}")
        rig.lose(f"w{number}")
    assert rig.given_up() == []


@pytest.mark.parametrize("heard", ["report", "commit"])
def test_one_that_said_so_and_is_out_of_reach_is_counted(rig: Rig, heard: str) -> None:
    rig.submit(request(0))
    for number in range(3):
        rig.add(f"w{number}")
        if heard == "report":
            rig.report(f"w{number}", rig.last())
        else:
            rig.commit(rig.last(), number + 1)
        rig.lose(f"w{number}")
    assert rig.given_up() == [request(0).id]


def test_one_that_was_only_out_of_reach_is_not_counted_after_all(rig: Rig) -> None:
    rig.submit(request(0))
    for number in range(9):
        rig.add(f"w{number}")
        rig.report(f"w{number}", rig.last())
        rig.lose(f"w{number}")
        rig.join(f"w{number}")
        rig.lose(f"w{number}", announced=True)
    assert rig.given_up() == []


def test_workers_that_left_after_a_notice_make_nothing_suspect(rig: Rig) -> None:
    rig.submit(request(0))
    for number in range(9):
        rig.add(f"w{number}")
        rig.lose(f"w{number}", announced=True, ended=True)
    assert rig.given_up() == []
