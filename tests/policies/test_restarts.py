"""Whether a worker whose process has ended is started again."""

from __future__ import annotations

import signal

import pytest

from spotlight.policies.restarts import MOST_BAD_LIVES, Life, Restarts
from spotlight.timings import NodeTimings

DAY_S = 86_400.0
KILLED = -signal.SIGKILL
WELL = Life(KILLED, was_ready=True)
BAD = (
    Life(70, was_ready=True, reason="the accelerator is lost"),
    Life(1, was_ready=False),
    Life(0, was_ready=True),
    Life(KILLED, was_ready=False),
    Life(KILLED, was_ready=True, was_sick=True),
)


@pytest.mark.parametrize("life", BAD)
def test_bad_lives_count_in_a_row_whatever_time_lies_between(life: Life) -> None:
    restarts = Restarts(NodeTimings(restart_pause_s=0.5))
    pauses = [restarts.pause_s(life, now * DAY_S) for now in range(MOST_BAD_LIVES)]
    assert pauses == [0.5, 2.0, 8.0, 32.0, None]
    assert restarts.bad_lives == MOST_BAD_LIVES


def test_a_worker_that_was_ready_and_was_killed_begins_the_row_anew() -> None:
    restarts = Restarts(NodeTimings())
    for round_ in range(4):
        for life in BAD[: MOST_BAD_LIVES - 1]:
            assert restarts.pause_s(life, round_ * DAY_S) is not None
        assert restarts.pause_s(WELL, round_ * DAY_S) == NodeTimings().restart_pause_s


def test_a_worker_that_is_killed_again_and_again_within_a_short_time_is_given_up() -> None:
    restarts = Restarts(NodeTimings(restart_window_s=60.0))
    assert [restarts.pause_s(WELL, now) for now in (0.0, 10.0, 20.0)] == [0.5] * 3
    assert restarts.pause_s(WELL, 61.0) == 0.5, "the first is forgotten"
    assert restarts.pause_s(WELL, 62.0) is None


@pytest.mark.parametrize(
    ("life", "words"),
    [
        (BAD[0], "the accelerator is lost"),
        (Life(1, was_ready=False), "ended with exit code 1 before it was ready; see its log"),
        (Life(KILLED, was_ready=False), "SIGKILL before it was ready; perhaps the machine ran out"),
        (Life(-signal.SIGSEGV, was_ready=False), "ended by SIGSEGV before it was ready"),
        (Life(-250, was_ready=True), "ended by signal 250"),
    ],
)
def test_the_reason_is_what_was_said_or_else_how_the_process_ended(life: Life, words: str) -> None:
    assert words in life.explanation


def test_only_a_kill_before_it_was_ready_is_taken_for_a_lack_of_memory() -> None:
    lives = (WELL, Life(-signal.SIGTERM, was_ready=False), Life(1, was_ready=False))
    assert not any("memory" in life.explanation for life in lives)
