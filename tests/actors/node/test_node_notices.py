"""A node that gets a notice lets its workers drain, leaves, and joins again if it stays."""

from __future__ import annotations

import asyncio

import pytest
from site_kit import Site

from spotlight.actors.protocol.down import UserNotice
from spotlight.actors.protocol.up import NodeNotice, WorkerReport
from spotlight.policies.notices import Notice

pytestmark = pytest.mark.virtual_time


async def test_a_notice_is_reported_and_the_node_leaves_when_all_have_drained(warm: Site) -> None:
    await warm.preempted(30.0)
    assert warm.coordinator.notices() == [None, NodeNotice("aws", 30.0)]
    assert warm.stops() == [None, pytest.approx(25.0, abs=0.2)]
    await warm.drained(1)
    assert warm.coordinator.departures() == [False]
    await warm.drained(2, 2)
    assert warm.coordinator.departures() == [False, True]


@pytest.mark.parametrize("source", ["signal", "aws"])
async def test_only_a_node_that_was_told_to_end_ends_when_it_has_left(
    warm: Site, source: str
) -> None:
    await warm.preempted(30.0, source)
    await warm.drained(1)
    assert not warm.left.is_set()
    await warm.drained(2)
    assert warm.left.is_set() is (source == "signal")


async def test_an_advice_changes_nothing(warm: Site) -> None:
    warm.notices.put_nowait(Notice("aws", "advise", "event"))
    await asyncio.sleep(1.0)
    assert (warm.stops(), warm.coordinator.notices()) == ([None], [None])


async def test_without_any_time_left_they_stop_at_once(warm: Site) -> None:
    await warm.preempted(0.0)
    assert warm.stops() == [None, 0.0]


async def test_the_nearest_of_two_notices_counts(warm: Site) -> None:
    await warm.user_gives(100.0)
    await warm.preempted(10.0)
    assert warm.stops()[:3] == [None, 95.0, pytest.approx(8.0, abs=0.2)]
    warm.notices.put_nowait(Notice("aws", "cancel", "event"))
    await asyncio.sleep(0.1)
    assert warm.stops()[-1] == pytest.approx(95.0, abs=0.5), "the user's notice still stands"
    sources = [notice and notice.source for notice in warm.coordinator.notices()]
    assert sources == [None, "user", "aws", "user"]


async def test_a_users_notice_counts_once_however_often_it_is_told(warm: Site) -> None:
    await warm.user_gives(100.0)
    await asyncio.sleep(20.0)
    await warm.plan(notice=UserNotice(1, 100.0, cancel=False))
    assert len(warm.coordinator.notices()) == 2
    last = warm.stops()[-1]
    assert last is not None
    assert last < 76.0


async def test_a_withdrawn_notice_is_as_if_it_had_not_been(warm: Site) -> None:
    await warm.user_gives(30.0)
    await warm.drained(1)
    await warm.user_gives(0.0, cancel=True)
    assert warm.stops()[-1] is None
    assert warm.coordinator.notices()[-1] is None
    reports = len(warm.coordinator.reports)
    await warm.drained(2)
    await asyncio.sleep(50.0)
    assert warm.coordinator.departures() == [False]
    assert len(warm.coordinator.reports) == reports


async def test_a_withdrawal_of_nothing_says_nothing(warm: Site) -> None:
    await warm.user_gives(0.0, cancel=True)
    assert (warm.stops(), warm.coordinator.notices()) == ([None], [None])


async def test_a_node_that_left_joins_again_when_its_notice_is_withdrawn(warm: Site) -> None:
    await warm.preempted(30.0)
    await warm.drained(1, 2)
    warm.notices.put_nowait(Notice("aws", "cancel", "event"))
    await asyncio.sleep(0.1)
    assert warm.stops()[-1] is None
    assert warm.coordinator.departures() == [False, True, False]


@pytest.mark.parametrize("drained", [True, False])
async def test_a_node_that_outlives_its_deadline_joins_again(warm: Site, drained: bool) -> None:
    await warm.preempted(30.0)
    if drained:
        await warm.drained(1, 2)
    await asyncio.sleep(80.0)
    assert warm.coordinator.report.notice is not None
    await asyncio.sleep(20.0)
    assert warm.stops()[-1] is None
    assert warm.coordinator.report.notice is None
    assert warm.coordinator.departures() == ([False, True, False] if drained else [False])


async def test_a_worker_that_comes_up_late_drains_too(warm: Site) -> None:
    await warm.preempted(30.0)
    await warm.end("n/1")
    await warm.drained(1)
    assert warm.coordinator.departures() == [False, True]
    warm.worker.inbox.clear()
    await warm.up("n/1")
    assert None not in warm.stops()
    assert warm.coordinator.departures() == [False, True], "what has left does not join"


async def test_a_worker_is_told_again_and_again_whether_its_node_leaves(warm: Site) -> None:
    await warm.preempted(1000.0)
    warm.worker.inbox.clear()
    await asyncio.sleep(2.5)
    assert warm.stops() and None not in warm.stops()
    warm.notices.put_nowait(Notice("aws", "cancel", "event"))
    await asyncio.sleep(0.1)
    warm.worker.inbox.clear()
    await asyncio.sleep(2.5)
    assert warm.stops() == [None]


async def test_what_an_ended_process_said_does_not_count(warm: Site) -> None:
    await warm.preempted(30.0)
    await warm.drained(1)
    await warm.end("n/0")
    await warm.up("n/0")
    await warm.drained(1, 2)
    assert warm.coordinator.departures() == [False]
    await warm.reports("n/0", 3, drained=True)
    assert warm.coordinator.departures() == [False, True]


async def test_what_a_worker_said_before_it_heard_of_the_notice_does_not_count(
    warm: Site,
) -> None:
    await warm.preempted(30.0)
    await warm.drained(1)
    warm.worker.tell(warm.node, WorkerReport("n/1", 2, plan=0, drained=True))
    await asyncio.sleep(0.1)
    assert warm.coordinator.departures() == [False]


async def test_a_coordinator_that_comes_back_hears_of_the_notice(warm: Site) -> None:
    await warm.preempted(1000.0)
    await warm.coordinator_system.abort()
    await asyncio.sleep(5.0)
    await warm.open_coordinator()
    await asyncio.sleep(10.0)
    assert warm.coordinator.notices() == [NodeNotice("aws", 1000.0)]


async def test_a_users_notice_outlives_the_coordinator(warm: Site) -> None:
    await warm.user_gives(1000.0)
    await warm.coordinator_system.abort()
    await warm.open_coordinator()
    await asyncio.sleep(10.0)
    assert warm.coordinator.notices() == [NodeNotice("user", 1000.0)]
