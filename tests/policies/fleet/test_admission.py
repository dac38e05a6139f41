"""Which waiting jobs begin."""

from __future__ import annotations

from spotlight.policies.fleet.admission import Waiting, admit, why_waits
from spotlight.policies.fleet.allocation import Borrower, Lendable
from spotlight.timings import SharingTimings

TIMINGS = SharingTimings()
LIMIT_S = TIMINGS.backfill_limit_s


def waiting(name: str, ranks: int = 1, submitted: float = 0.0, priority: int = 0) -> Waiting:
    return Waiting(name, priority, submitted, ranks)


def running(name: str, ranks: int, *trains_on: str) -> Borrower:
    return Borrower(name, 1.0, 0, 0, ranks, frozenset(trains_on), 0.0)


def reserved(count: int, tenant: str = "") -> list[Lendable]:
    return [
        Lendable(f"r{number}", "reserved", 1, tenant, None, True, "") for number in range(count)
    ]


def begin(
    *what: Waiting | Borrower, nodes: int, now: float = 0.0, tenant: str = "runs"
) -> list[str]:
    queue = [each for each in what if isinstance(each, Waiting)]
    borrowers = [each for each in what if isinstance(each, Borrower)]
    return admit(now, queue, borrowers, reserved(nodes, tenant), TIMINGS)


def reason(
    name: str, *what: Waiting | Borrower, nodes: int, now: float = 0.0, tenant: str = "runs"
) -> str:
    queue = [each for each in what if isinstance(each, Waiting)]
    borrowers = [each for each in what if isinstance(each, Borrower)]
    return why_waits(name, now, queue, borrowers, reserved(nodes, tenant), TIMINGS)


def test_a_job_begins_if_the_workers_are_free_that_train() -> None:
    assert begin(running("runs", 1), waiting("a", ranks=2), nodes=3) == ["a"]
    assert begin(running("runs", 1), waiting("a", ranks=2), nodes=2) == []


def test_what_a_running_job_has_lost_is_not_free() -> None:
    assert begin(running("runs", 3, "r0"), waiting("a"), nodes=3) == []


def test_spot_nodes_and_those_with_notice_are_not_trained_on() -> None:
    nodes = [
        Lendable("s", "spot", 8, "", None, True, ""),
        Lendable("r", "reserved", 8, "", None, False, ""),
    ]
    assert admit(0.0, [waiting("a")], [running("runs", 1)], nodes, TIMINGS) == []


def test_the_first_one_begins_without_nodes_if_no_job_runs() -> None:
    assert begin(waiting("a", ranks=2), waiting("b", submitted=1.0), nodes=0) == ["a"]
    session = running("session", 0)
    assert begin(session, waiting("a", ranks=2), nodes=0) == ["a"]


def test_sessions_begin_at_once() -> None:
    assert begin(running("runs", 1), waiting("a"), waiting("s", ranks=0), nodes=1) == ["s"]


def test_the_priority_counts_before_the_age() -> None:
    old, urgent = waiting("old"), waiting("urgent", submitted=1.0, priority=1)
    assert begin(running("runs", 1), old, urgent, nodes=2) == ["urgent"]
    assert begin(running("runs", 1), old, urgent, nodes=3) == ["urgent", "old"]


def test_a_later_job_may_begin_while_the_first_one_does_not_fit() -> None:
    large, small = waiting("large", ranks=4), waiting("small", submitted=1.0)
    assert begin(running("runs", 1), large, small, nodes=3, now=LIMIT_S) == ["small"]


def test_no_job_begins_before_one_that_has_waited_for_too_long() -> None:
    large, small = waiting("large", ranks=4), waiting("small", submitted=1.0)
    now = LIMIT_S + 1.0
    assert begin(running("runs", 1), large, small, nodes=3, now=now) == []
    assert begin(running("runs", 1), large, small, nodes=5, now=now) == ["large"]
    urgent = waiting("urgent", submitted=1.0, priority=1)
    assert begin(running("runs", 1), large, urgent, nodes=3, now=now) == ["urgent"]


def test_it_is_said_what_a_job_waits_for() -> None:
    what = running("runs", 1), waiting("a", ranks=2)
    assert reason("a", *what, nodes=2) == "waits for 2 reserved workers; 1 is free"
    assert reason("a", *what, nodes=0) == "waits for 2 reserved workers; 0 are free"
    assert reason("b", *what, waiting("b"), nodes=1) == "waits for 1 reserved worker; 0 are free"
    assert reason("a", *what, nodes=3) == ""


def test_it_is_said_whom_a_job_may_not_overtake() -> None:
    what = running("runs", 1), waiting("large", ranks=4), waiting("small", submitted=1.0)
    told = reason("small", *what, nodes=3, now=LIMIT_S + 1.0)
    assert told == "waits until large begins, which has waited for too long"
