"""The table of requests: workers that fail what others can do."""

from __future__ import annotations

import pytest
from table_rig import Rig, ids, request, requests

from spotlight.policies.requests.instructions import EndWorker, GrantLease
from spotlight.record.run_events import WorkerIsSick


def join_all(rig: Rig, *workers: str) -> None:
    """Workers that take one request at a time."""
    for name in workers:
        rig.add(name, credits=1, batch=1)


def open_grants(rig: Rig, worker: str = "") -> list[GrantLease]:
    """Those that are not over."""
    numbers = {lease.number for lease in rig.table.leases()}
    return [grant for grant in rig.grants(worker) if grant.lease in numbers]


def fail_all(rig: Rig, worker: str, most: int = 99) -> int:
    """Have a worker fail so much of what it gets; returns how much that was."""
    failed = 0
    while failed < most and (grants := open_grants(rig, worker)):
        rig.fail(grants[-1])
        failed += 1
    return failed


def complete_until_one_is_ended(rig: Rig, worker: str) -> GrantLease:
    """Have a worker do what it gets; returns what it did last."""
    while not rig.all(EndWorker):
        (grant,) = open_grants(rig, worker)
        rig.complete(grant)
    return grant


def sick_and_well(rig: Rig, count: int = 12) -> None:
    join_all(rig, "well", "sick")
    rig.submit(*requests(count))


def test_a_worker_that_fails_one_lease_after_the_other_is_held_back(rig: Rig) -> None:
    sick_and_well(rig)
    assert fail_all(rig, "sick") == 3
    rig.wait(60, rig.last("well"), credits=1, batch=1)
    assert not open_grants(rig, "sick"), "others may try"
    assert rig.given_up() == []


def test_it_is_sick_once_others_do_what_it_failed(rig: Rig) -> None:
    sick_and_well(rig)
    fail_all(rig, "sick")
    failed = {one for grant in rig.grants("sick") for one in ids(grant)}
    assert {*ids(complete_until_one_is_ended(rig, "well"))} <= failed
    (end,) = rig.all(EndWorker)
    assert (end.node, end.worker, end.epoch) == ("sick's", "sick", 1)
    assert end.reason == "it failed what others could do: broken"
    (event,) = rig.events(WorkerIsSick)
    assert (event.worker, event.reason) == ("sick", end.reason)


def test_a_sick_worker_gets_nothing_until_it_is_another_process(rig: Rig) -> None:
    sick_and_well(rig, 4)
    fail_all(rig, "sick")
    while rig.table.open("rollout"):
        rig.complete(rig.last("well"))
    rig.lose("well")
    rig.submit(*requests(4, group=1))
    rig.wait(300)
    rig.report("sick", credits=1, batch=1)
    assert not open_grants(rig, "sick")
    rig.add("sick", epoch=2, credits=1, batch=1)
    assert len(open_grants(rig, "sick")) == 1


def test_what_it_failed_counts_against_no_request(rig: Rig) -> None:
    sick_and_well(rig, 4)
    fail_all(rig, "sick")
    complete_until_one_is_ended(rig, "well")
    assert fail_all(rig, "well", 2) == 2
    assert rig.given_up() == []
    fail_all(rig, "well", 1)
    assert len(rig.given_up()) == 1, "it was the same request each time"


def test_the_lease_that_it_still_has_goes_to_others(rig: Rig) -> None:
    rig.add("well", credits=1, batch=1)
    rig.add("sick", credits=2, batch=1)
    rig.submit(*requests(12))
    fail_all(rig, "sick", 3)
    (left,) = open_grants(rig, "sick")
    complete_until_one_is_ended(rig, "well")
    assert rig.revoked() == [left.lease]
    assert open_grants(rig, "sick") == []


def test_what_it_commits_under_that_lease_does_not_count(rig: Rig) -> None:
    rig.add("well", credits=1, batch=1)
    rig.add("sick", credits=2, batch=1)
    rig.submit(*requests(12))
    fail_all(rig, "sick", 3)
    (left,) = open_grants(rig, "sick")
    complete_until_one_is_ended(rig, "well")
    assert rig.commit(left, 1).accepted == 0
    assert left.lease not in {lease.number for lease in rig.table.leases()}


def test_no_request_is_given_up_for_what_a_suspect_does_to_it(rig: Rig) -> None:
    """It may try again from time to time while the others are busy."""
    sick_and_well(rig, 3)
    (well,) = open_grants(rig, "well")
    for _ in range(6):
        fail_all(rig, "sick")
        rig.wait(30, well, credits=1, batch=1)
    assert rig.given_up() == []


def test_a_success_between_makes_a_worker_none_that_is_sick(rig: Rig) -> None:
    sick_and_well(rig, 40)
    for _ in range(5):
        assert fail_all(rig, "sick", 2) == 2
        rig.complete(open_grants(rig, "sick")[-1])
        rig.complete(open_grants(rig, "well")[-1])
    assert rig.all(EndWorker) == []
    assert open_grants(rig, "sick")


def test_the_same_request_again_and_again_says_nothing_of_a_worker(rig: Rig) -> None:
    join_all(rig, "a", "b")
    rig.submit(request(0))
    while rig.table.open("rollout"):
        rig.fail(rig.last())
        rig.wait(11)
    assert rig.given_up() == [request(0).id]
    assert rig.all(EndWorker) == []


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_requests_that_everybody_fails_are_given_up(rig: Rig, workers: int) -> None:
    names = [f"w{number}" for number in range(workers)]
    join_all(rig, *names)
    rig.submit(*requests(6))
    for _ in range(200):
        if not rig.table.open("rollout"):
            break
        for name in names:
            fail_all(rig, name, 1)
        rig.wait(11)
    assert sorted(rig.given_up()) == sorted(ids(requests(6)))
    assert rig.all(EndWorker) == []


def test_a_suspect_does_not_wait_for_ever_for_one_who_never_takes_work(rig: Rig) -> None:
    """Its failures count then: a job must end."""
    rig.join("idle")
    rig.add("only", credits=1, batch=1)
    rig.submit(*requests(4))
    for _ in range(40):
        fail_all(rig, "only")
        rig.wait(121)
    assert len(rig.given_up()) == 4


def test_scorers_that_fail_say_nothing_of_a_worker(rig: Rig) -> None:
    sick_and_well(rig)
    for _ in range(3):
        rig.fail(open_grants(rig, "sick")[-1], what="scoring")
    while grants := open_grants(rig):
        rig.complete(grants[-1])
    assert len(rig.finished()) == 12
    assert rig.all(EndWorker) == []


def test_what_a_suspect_failed_before_it_was_lost_counts_against_no_request(rig: Rig) -> None:
    sick_and_well(rig, 4)
    fail_all(rig, "sick")
    rig.lose("sick")
    rig.complete(open_grants(rig, "well")[-1])
    assert fail_all(rig, "well", 2) == 2
    assert rig.given_up() == []
    fail_all(rig, "well", 1)
    assert len(rig.given_up()) == 1, "it was the same request each time"
