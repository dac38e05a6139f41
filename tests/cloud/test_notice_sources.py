"""Watching several sources, on virtual time and with scripted sources."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from spotlight.cloud.notices import Announcement, Notice, SourceFailed
from tests.cloud.watching import watching

pytestmark = pytest.mark.virtual_time

NOTICE = Announcement("event", "preempt", 30.0)


class Script:
    """Answers each reading with the next entry, and then with the last one again and again."""

    def __init__(self, *entries: Sequence[Announcement] | Exception, name: str = "script") -> None:
        self.name = name
        self.poll_s = 1.0
        self.read_at: list[float] = []
        self._entries = list(entries)

    async def read(self) -> Sequence[Announcement]:
        self.read_at.append(asyncio.get_running_loop().time())
        entry = self._entries.pop(0) if len(self._entries) > 1 else self._entries[0]
        if isinstance(entry, Exception):
            raise entry
        return entry


async def test_the_deadline_is_on_the_clock_of_the_loop():
    await asyncio.sleep(100)
    async with watching(Script([], [NOTICE])) as told:
        assert await told.next() == Notice("script", "preempt", "event", 30.0, 131.0)
        await asyncio.sleep(60)
        assert told.nothing_more()


async def test_a_notice_and_its_withdrawal_are_told():
    async with watching(Script([NOTICE], [])) as told:
        assert [(await told.next()).kind for _ in range(2)] == ["preempt", "cancel"]
    assert told.book.seen == {"script": 1}


async def test_a_source_that_fails_withdraws_nothing():
    async with watching(Script([NOTICE], SourceFailed("down"))) as told:
        await told.next()
        await asyncio.sleep(60)
        assert told.nothing_more()


async def test_a_source_that_fails_is_read_again_ever_less_often_but_never_rarely():
    source = Script(SourceFailed("down"))
    async with watching(source):
        await asyncio.sleep(30)
    pauses = [later - earlier for earlier, later in itertools.pairwise(source.read_at)]
    assert pauses == [2.0, 4.0, 5.0, 5.0, 5.0, 5.0]


async def test_a_source_that_is_back_is_heard():
    down = SourceFailed("down")
    source = Script(down, down, down, [NOTICE])
    with capture_logs() as lines:
        async with watching(source) as told:
            assert (await told.next()).kind == "preempt"
            await asyncio.sleep(3)
    assert source.read_at[-1] - source.read_at[-2] == source.poll_s
    failing = [line for line in lines if line["event"] == "notice_source_failing"]
    assert [(line["failures"], line["reason"]) for line in failing] == [(1, "down"), (2, "down")]
    assert [line["failures"] for line in lines if line["event"].endswith("recovered")] == [3]


async def test_a_long_failure_is_said_now_and_then():
    with capture_logs() as lines:
        async with watching(Script(SourceFailed("down"))):
            await asyncio.sleep(3600)
    assert [line["failures"] for line in lines] == [2**n for n in range(len(lines))]
    assert len(lines) > 5


async def test_a_fault_of_one_source_does_not_blind_the_node_to_another():
    broken = Script(KeyError("a mistake of ours"), name="broken")
    with capture_logs() as lines:
        async with watching(broken, Script([], [NOTICE])) as told:
            assert (await told.next()).source == "script"
    assert lines[0]["source"] == "broken"
    assert lines[0]["exc_info"]


async def test_two_sources_of_one_event_are_told_as_the_nearest_deadline():
    sooner = Announcement("sigterm", "preempt", 10.0)
    async with watching(Script([NOTICE], name="aws"), Script([], [sooner], name="signal")) as told:
        assert await told.next() == Notice("aws", "preempt", "event", 30.0, 30.0)
        assert await told.next() == Notice("signal", "preempt", "sigterm", 10.0, 11.0)
        await asyncio.sleep(60)
        assert told.nothing_more()
    assert told.book.seen == {"aws": 1, "signal": 1}
    assert told.book.last_lead_s == {"aws": 30.0, "signal": 10.0}


async def test_every_event_is_in_the_log_with_its_lead_time():
    with capture_logs() as lines:
        async with watching(Script([NOTICE], [])) as told:
            await told.next()
            await told.next()
    seen = [(line["kind"], line["event_id"], line["lead_s"]) for line in lines]
    assert seen == [("preempt", "event", 30.0), ("cancel", "event", None)]


async def test_a_machine_without_sources_hears_nothing():
    async with watching() as told:
        await asyncio.sleep(60)
        assert told.nothing_more()
