"""A thread that can be left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from spotlight.actors.runtime.abandonable_thread import AbandonableThread


@pytest.fixture
def thread() -> Iterator[AbandonableThread]:
    made = AbandonableThread("test")
    yield made
    made.close()


def test_work_runs_in_the_order_in_which_it_was_submitted(thread: AbandonableThread) -> None:
    done: list[int] = []
    futures = [thread.submit(lambda number=number: done.append(number)) for number in range(20)]
    futures[-1].result(10)
    assert done == list(range(20))


def test_an_error_reaches_the_one_who_waits_and_the_next_work_runs(
    thread: AbandonableThread,
) -> None:
    failing = thread.submit(lambda: 1 // 0)
    after = thread.submit(lambda: "fine")
    with pytest.raises(ZeroDivisionError):
        failing.result(10)
    assert after.result(10) == "fine"


def test_what_is_queued_goes_on_in_a_new_thread_while_the_old_one_is_stuck(
    thread: AbandonableThread,
) -> None:
    free = threading.Event()
    stuck = thread.submit(lambda: free.wait(10))
    while not stuck.running():
        time.sleep(0.001)
    queued = thread.submit(threading.get_ident)
    thread.abandon()
    own = queued.result(10)
    assert not stuck.done()
    free.set()
    assert stuck.result(10) is True
    assert thread.submit(threading.get_ident).result(10) == own


def test_a_thread_left_behind_ends_after_its_work_and_takes_no_more(
    thread: AbandonableThread,
) -> None:
    free = threading.Event()
    stuck = thread.submit(lambda: (free.wait(10), threading.current_thread())[1])
    while not stuck.running():
        time.sleep(0.001)
    thread.abandon()
    free.set()
    left_behind = stuck.result(10)
    left_behind.join(10)
    assert not left_behind.is_alive()
    assert thread.submit(lambda: "fine").result(10) == "fine"


def test_an_idle_thread_that_is_abandoned_takes_nothing_either(thread: AbandonableThread) -> None:
    first = thread.submit(threading.current_thread).result(10)
    thread.abandon()
    first.join(10)
    assert not first.is_alive()
    assert thread.submit(threading.current_thread).result(10) is not first


def test_closing_cancels_what_waits_and_ends_the_thread(thread: AbandonableThread) -> None:
    free = threading.Event()
    running = thread.submit(lambda: (free.wait(10), threading.current_thread())[1])
    while not running.running():
        time.sleep(0.001)
    waiting = thread.submit(lambda: None)
    thread.close()
    assert waiting.cancelled()
    free.set()
    running.result(10).join(10)
    assert not running.result(10).is_alive()


def test_work_that_was_cancelled_does_not_run(thread: AbandonableThread) -> None:
    free = threading.Event()
    thread.submit(lambda: free.wait(10))
    ran: list[bool] = []
    cancelled = thread.submit(lambda: ran.append(True))
    assert cancelled.cancel()
    free.set()
    thread.submit(lambda: None).result(10)
    assert ran == []
