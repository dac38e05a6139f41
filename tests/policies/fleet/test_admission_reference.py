"""What admission decides, beside the simplest thing that could decide it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.fleet.admission import Waiting, admit, why_waits
from spotlight.policies.fleet.allocation import Borrower, Lendable
from spotlight.timings import SharingTimings

TIMINGS = SharingTimings()
NOW = 2 * TIMINGS.backfill_limit_s

queues = st.lists(
    st.builds(
        Waiting,
        st.sampled_from("abcdefgh"),
        st.integers(0, 2),
        st.sampled_from((0.0, 1.0, NOW / 2 - 1.0, NOW / 2 + 1.0, NOW)),
        st.integers(0, 4),
    ),
    unique_by=lambda each: each.id,
)


def reference(queue: list[Waiting], ran: list[int], workers: int) -> list[str]:
    """With nodes of one worker each, so that all that counts is how many there are."""
    begun, ranks, is_barred = [], list(ran), False
    for each in sorted(queue, key=lambda it: (-it.priority, it.submitted, it.id)):
        fits = sum(ranks) + each.ranks <= workers
        if each.ranks == 0 or not any(ranks) or (fits and not is_barred):
            begun.append(each.id)
            ranks.append(each.ranks)
        elif NOW - each.submitted > TIMINGS.backfill_limit_s:
            is_barred = True
    return begun


@given(queues, st.lists(st.integers(0, 3), max_size=3), st.integers(0, 8))
def test_it_admits_whom_a_count_of_workers_admits(
    queue: list[Waiting], ran: list[int], workers: int
) -> None:
    nodes = [Lendable(f"r{each}", "reserved", 1, "", None, True, "") for each in range(workers)] + [
        Lendable("s", "spot", 4, "", None, True, "")
    ]
    running = [
        Borrower(f"ran {order}", 1.0, order % 2, order, ranks, frozenset(), 0.0)
        for order, ranks in enumerate(ran)
    ]
    begun = admit(NOW, queue, running, nodes, TIMINGS)
    assert begun == reference(queue, ran, workers)
    for each in queue:
        reason = why_waits(each.id, NOW, queue, running, nodes, TIMINGS)
        assert (reason == "") == (each.id in begun)


@given(queues, st.integers(0, 8))
def test_whatever_waits_begins_once_those_before_have_ended(
    queue: list[Waiting], workers: int
) -> None:
    nodes = [Lendable(f"r{each}", "reserved", 1, "", None, True, "") for each in range(workers)]
    ended: list[str] = []
    while queue:
        begun = admit(NOW, queue, [], nodes, TIMINGS)
        assert begun
        ended += begun
        queue = [each for each in queue if each.id not in begun]
    assert len(ended) == len(set(ended))
