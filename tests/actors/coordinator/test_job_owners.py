"""A job is its submitter's: it alone, or an operator, ends it or goes on with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from job_kit import job
from town_kit import Town

from spotlight.actors.protocol.users import (
    CancelJob,
    CancelRefused,
    JobAccepted,
    JobRefused,
    JobStatus,
    SubmitJob,
)
from spotlight.actors.runtime import ActorSystem, Message
from spotlight.transport.control.keys import key_of
from spotlight_simulation.key_for_everybody import KeyForEverybody

pytestmark = pytest.mark.virtual_time

USERS = {"alice": "alice", "bob": "bob", "operator": "operator", "gone": ""}
"""What belongs to whom, by the names of their processes."""


@pytest.fixture
async def users(town: Town, monkeypatch: pytest.MonkeyPatch) -> dict[str, ActorSystem]:
    def user(ring: KeyForEverybody, address: str) -> str:
        return USERS[key_of(address)]

    monkeypatch.setattr(KeyForEverybody, "user", user)
    return {name: await town.cluster.system(name) for name in USERS}


async def ask(town: Town, user: ActorSystem, message: Message) -> Any:
    to = user.well_known(town.system.address, "coordinator")
    return await user.ask(to, message, timeout_s=30.0)


async def runs(town: Town) -> bool:
    status = await town.status()
    return bool(status.job) and not status.outcome


async def test_a_submitter_ends_its_own_job_and_nobody_else_s(
    town: Town, users: dict[str, ActorSystem]
) -> None:
    assert isinstance(await ask(town, users["alice"], SubmitJob(job(), "", False)), JobAccepted)
    await asyncio.sleep(2.0)
    for other in ("bob", "gone"):
        answer = await ask(town, users[other], CancelJob())
        assert isinstance(answer, CancelRefused)
        assert "`tiny` is somebody else's" in answer.reason
    await asyncio.sleep(2.0)
    assert await runs(town)
    assert isinstance(await ask(town, users["alice"], CancelJob()), JobStatus)
    assert (await town.ended()).outcome == "cancelled"


async def test_an_operator_ends_every_job(town: Town, users: dict[str, ActorSystem]) -> None:
    await ask(town, users["alice"], SubmitJob(job(), "", False))
    assert isinstance(await ask(town, users["operator"], CancelJob()), JobStatus)
    assert (await town.ended()).outcome == "cancelled"


async def test_the_operator_s_job_is_no_submitter_s(
    town: Town, users: dict[str, ActorSystem]
) -> None:
    await ask(town, users["operator"], SubmitJob(job(), "", False))
    assert isinstance(await ask(town, users["alice"], CancelJob()), CancelRefused)


async def test_the_next_coordinator_knows_whose_a_job_is(
    town: Town, users: dict[str, ActorSystem]
) -> None:
    await ask(town, users["alice"], SubmitJob(job(), "", False))
    await asyncio.sleep(5.0)
    await town.kill()
    await asyncio.sleep(1.0)
    await town.open()
    await asyncio.sleep(10.0)
    assert await runs(town)
    assert isinstance(await ask(town, users["bob"], CancelJob()), CancelRefused)
    assert isinstance(await ask(town, users["alice"], CancelJob()), JobStatus)
    assert (await town.ended()).outcome == "cancelled"


async def test_a_run_is_gone_on_with_by_its_submitter_and_by_operators(
    town: Town, users: dict[str, ActorSystem]
) -> None:
    accepted = await ask(town, users["alice"], SubmitJob(job(), "", False))
    await asyncio.sleep(5.0)
    await ask(town, users["alice"], CancelJob())
    await town.ended()
    again = SubmitJob(job(), accepted.run_folder, True)
    refused = await ask(town, users["bob"], again)
    assert isinstance(refused, JobRefused)
    assert "somebody else's run" in refused.reason
    assert not await runs(town)
    assert isinstance(await ask(town, users["operator"], again), JobAccepted)
    assert isinstance(await ask(town, users["bob"], CancelJob()), CancelRefused)
    assert isinstance(await ask(town, users["alice"], CancelJob()), JobStatus)


async def test_whoever_was_shown_out_submits_nothing(
    town: Town, users: dict[str, ActorSystem]
) -> None:
    """What it said before may be handled after."""
    refused = await ask(town, users["gone"], SubmitJob(job(), "", False))
    assert isinstance(refused, JobRefused)
    assert not await runs(town)
