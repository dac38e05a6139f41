"""The leader makes commits known, and gives work back, as when it drains, once they are safe."""

from __future__ import annotations

import asyncio

import pytest
from group_leader_kit import *  # noqa: F403  (its fixtures)
from leader_kit import Crew, committed, completed, returned

from spotlight.actors.protocol.down import Grant, Recall, Receipt, WorkerPlan
from spotlight.actors.protocol.up import CommitSteps, Completed, LeaseFailed, Pull, ReturnLease

pytestmark = pytest.mark.virtual_time


# --- commits ---


async def test_a_commit_is_made_known_to_the_dispatcher(crew: Crew) -> None:
    await crew.working(4)
    await crew.tell(committed(4, 2))
    assert crew.dispatcher.all(CommitSteps) == [committed(4, 2)]
    await asyncio.sleep(5.0)
    assert crew.held() == (4,)


async def test_only_the_latest_commit_is_sent_again(crew: Crew) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.tell(committed(4, 2))
    await crew.tell(committed(4, 3))
    await crew.tell(committed(4, 5))
    crew.receipt = Receipt(1)
    await asyncio.sleep(10.0)
    assert crew.dispatcher.all(CommitSteps) == [committed(4, 2), committed(4, 5)]


async def test_a_commit_of_what_is_done_is_not_sent_again(crew: Crew) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.tell(committed(4, 2))
    await crew.tell(completed(4))
    crew.receipt = Receipt(1)
    await asyncio.sleep(10.0)
    assert crew.dispatcher.all(CommitSteps) == [committed(4, 2)]
    assert crew.dispatcher.all(Completed) == [completed(4)]


@pytest.mark.parametrize(
    "end",
    [returned(4), LeaseFailed("w", 7, 4, "no scorer", what="scoring")],
    ids=["returned", "not scored"],
)
async def test_what_others_go_on_with_is_given_back_after_its_commit_is_safe(
    crew: Crew, end: ReturnLease | LeaseFailed
) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.tell(committed(4, 2))
    await crew.tell(end)
    assert end not in crew.dispatcher.inbox
    crew.receipt = Receipt(1)
    await asyncio.sleep(2.0)
    told = [m for m in crew.dispatcher.inbox if isinstance(m, CommitSteps | type(end))]
    assert told == [committed(4, 2), committed(4, 2), end]
    assert crew.held() == ()


async def test_a_commit_of_what_failed_to_denoise_is_not_sent_again(crew: Crew) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.tell(committed(4, 2))
    failed = LeaseFailed("w", 7, 4, "out of memory")
    await crew.tell(failed)
    crew.receipt = Receipt(1)
    await asyncio.sleep(10.0)
    assert crew.dispatcher.all(CommitSteps) == [committed(4, 2)]
    assert crew.dispatcher.all(LeaseFailed) == [failed]


async def test_a_recalled_lease_is_returned_once_its_commit_is_safe(crew: Crew) -> None:
    await crew.working(4, 5)
    await crew.tell(Recall((4, 9)))
    assert crew.member.last(Recall).leases in ((4,), (4, 9))
    assert crew.dispatcher.all(ReturnLease) == []
    await crew.tell(committed(4, 2))
    await crew.tell(returned(4))
    assert crew.dispatcher.last(CommitSteps) == committed(4, 2)
    assert crew.dispatcher.all(ReturnLease) == [returned(4)]
    assert crew.held() == (5,)


# --- draining ---


async def test_while_it_drains_it_takes_nothing_and_says_when_nothing_is_left(crew: Crew) -> None:
    await crew.working(4, 5)
    await crew.drain(20.0)
    assert crew.member.last(WorkerPlan).stop_in_s == 20.0
    assert crew.dispatcher.last(Pull).credits == 0
    await crew.grant(6)
    assert crew.dispatcher.last(ReturnLease) == returned(6)
    await crew.tell(returned(5))
    assert crew.drained() == []
    await crew.tell(completed(4))
    assert crew.drained() == [True]
    assert [message.lease for message in crew.member.all(Grant)] == [4, 5]


async def test_it_has_not_drained_before_the_dispatcher_knows(crew: Crew) -> None:
    await crew.working(4)
    crew.receipt = None
    await crew.drain(20.0)
    await crew.tell(completed(4))
    assert crew.drained() == []
    crew.receipt = Receipt(1)
    await asyncio.sleep(2.0)
    assert crew.drained() == [True]


async def test_an_idle_one_has_drained_at_once(crew: Crew) -> None:
    await crew.drain(20.0)
    assert crew.drained() == [True]


async def test_when_the_notice_is_withdrawn_it_takes_work_again(crew: Crew) -> None:
    await crew.prepare()
    await crew.drain(20.0)
    await crew.drain(None)
    assert crew.member.last(WorkerPlan).stop_in_s is None
    assert crew.dispatcher.last(Pull).credits > 0
    await crew.grant(4)
    assert crew.held() == (4,), "it says at once what it took"
    assert crew.drained() == [True, False]


async def test_a_job_that_is_prepared_while_it_drains_gets_nothing(crew: Crew) -> None:
    await crew.drain(20.0)
    await crew.prepare()
    assert crew.dispatcher.last(Pull).credits == 0
