import asyncio
import os
import signal

import pytest

from spotlight.cloud.signals import GRACE_VARIABLE, grace_s, signals_as_notice
from spotlight.errors import UserError
from tests.cloud.watching import watching

BOTH = (signal.SIGTERM, signal.SIGHUP)
USER = (signal.SIGUSR1, signal.SIGUSR2)


def receive(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.both_loops
@pytest.mark.parametrize(("first", "second"), [BOTH, BOTH[::-1], BOTH[:1] * 2])
async def test_the_first_signal_is_a_notice_and_the_second_ends(first, second):
    end = asyncio.Event()
    with signals_as_notice(BOTH, USER, 30.0, again=end.set) as source:
        async with watching(source) as told:
            receive(first)
            notice = await told.next()
            assert (notice.source, notice.kind) == ("signal", "preempt")
            assert 25 < notice.lead_s <= 30
            assert not end.is_set()
            receive(second)
            await end.wait()
            assert told.nothing_more()


async def test_a_sigterm_from_before_the_watch_is_seen_with_what_is_left_of_its_time():
    with signals_as_notice(BOTH, USER, 0.05, again=lambda: None) as source:
        source.told_to_end()
        await asyncio.sleep(0.1)
        async with watching(source) as told:
            assert (await told.next()).lead_s == 0


@pytest.mark.parametrize("number", USER)
async def test_slurms_signals_are_notices_and_never_end_a_node_by_themselves(number):
    end = asyncio.Event()
    with signals_as_notice(BOTH, USER, 30.0, again=end.set) as source:
        async with watching(source) as told:
            receive(number)
            assert (await told.next()).source == "signal"
            receive(number)
            receive(signal.SIGTERM)
            assert not end.is_set()
            receive(signal.SIGTERM)
            await end.wait()
            assert told.nothing_more()


@pytest.mark.parametrize("number", [*BOTH, *USER])
async def test_a_signal_kills_again_afterwards(number):
    with signals_as_notice(BOTH, USER, 30.0, again=lambda: None):
        assert signal.getsignal(number) != signal.SIG_DFL
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.parametrize(("text", "seconds"), [("", 30.0), ("0", 0.0), ("15", 15.0), ("2.5", 2.5)])
def test_the_environment_says_how_long_a_sigterm_leaves(text, seconds):
    assert grace_s({GRACE_VARIABLE: text}) == seconds


def test_without_a_word_a_sigterm_leaves_thirty_seconds():
    assert grace_s({}) == 30.0


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "30s"])
def test_a_grace_that_is_no_time_is_refused_by_name(text):
    with pytest.raises(UserError, match=GRACE_VARIABLE):
        grace_s({GRACE_VARIABLE: text})
