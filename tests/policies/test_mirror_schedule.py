"""When a run is copied to object storage, and when that is tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.mirror_schedule import PAUSES_S, MirrorSchedule, Upload, Wait


def test_nothing_is_copied_before_there_is_anything() -> None:
    assert MirrorSchedule().next(0.0) is None


def test_the_newest_state_is_copied_once_and_older_ones_are_passed_over() -> None:
    schedule = MirrorSchedule()
    schedule.taken()
    assert schedule.next(0.0) == Upload(1)
    schedule.taken()
    schedule.taken()
    schedule.uploaded(1)
    assert schedule.next(0.0) == Upload(3)
    schedule.uploaded(3)
    assert schedule.next(0.0) is None


def test_pauses_between_failures_grow_to_the_longest_and_begin_anew_after_a_success() -> None:
    schedule, now = MirrorSchedule(), 0.0
    schedule.taken()
    pauses = []
    for _ in range(len(PAUSES_S) + 2):
        pauses.append(schedule.failed(now))
        assert schedule.next(now) == Wait(pauses[-1])
        now += pauses[-1]
        assert schedule.next(now) == Upload(1)
    assert pauses == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]
    schedule.uploaded(1)
    schedule.taken()
    assert schedule.failed(now) == PAUSES_S[0]


def test_a_newer_state_does_not_shorten_the_pause() -> None:
    schedule = MirrorSchedule()
    schedule.taken()
    pause_s = schedule.failed(10.0)
    schedule.taken()
    assert schedule.next(10.0) == Wait(pause_s)
    assert schedule.next(10.0 + pause_s) == Upload(2)


def test_the_last_state_of_all_is_tried_at_once() -> None:
    schedule = MirrorSchedule()
    schedule.taken()
    for _ in PAUSES_S:
        schedule.failed(0.0)
    schedule.hurry()
    assert schedule.next(0.0) == Upload(1)
    assert schedule.failed(0.0) == PAUSES_S[0]


@given(st.lists(st.sampled_from(("taken", "uploaded", "failed", "hurry"))))
def test_whatever_happens_the_newest_state_is_copied_within_the_longest_pause(
    story: list[str],
) -> None:
    schedule, taken, copied = MirrorSchedule(), 0, 0
    for now, what in enumerate(story):
        step = schedule.next(now)
        if what == "taken":
            schedule.taken()
            taken += 1
        elif what == "hurry":
            schedule.hurry()
        elif isinstance(step, Upload):
            assert step.number == taken > copied
            if what == "uploaded":
                schedule.uploaded(step.number)
                copied = step.number
            else:
                schedule.failed(now)
    later = schedule.next(len(story) + PAUSES_S[-1])
    assert later == (Upload(taken) if taken > copied else None)
