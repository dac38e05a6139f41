"""A coordinator may be killed at any place of its queue's writes: real actors, virtual time."""

from __future__ import annotations

import pytest

from spotlight_simulation.queue_kills import QueueLife, killed_at, lives

PLACES_OF_A_WRITE = {
    "queue.write",
    "journal.before_commit",
    "journal.commit",
    "journal.after_commit",
    "queue.written",
}


def problems(life: QueueLife) -> list[str]:
    is_struck = [] if life.killed_at else ["nothing was killed"]
    return [*is_struck, *life.lost, *life.twice]


def test_without_a_kill_all_jobs_end_as_they_should() -> None:
    life = killed_at(0)
    assert (life.killed_at, life.lost, life.twice) == ("", (), ())


def test_a_coordinator_killed_in_a_write_of_its_queue_loses_no_job_and_has_none_twice() -> None:
    """At every failpoint, in the writes of a submission, a begin, a cancellation or an end."""
    found = list(lives(every=9))
    assert [problems(life) for life in found] == [[]] * len(found)
    assert {life.killed_at for life in found} == PLACES_OF_A_WRITE


@pytest.mark.slow
def test_a_coordinator_killed_at_any_place_of_its_queue_loses_no_job_and_has_none_twice() -> None:
    found = list(lives())
    assert [problems(life) for life in found] == [[]] * len(found)
    assert len(found) >= 8 * len(PLACES_OF_A_WRITE)
