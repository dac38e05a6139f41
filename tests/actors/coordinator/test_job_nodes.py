"""Nodes join a running job under names of their own, and speak for themselves only."""

from __future__ import annotations

import asyncio
import re

import pytest
from job_kit import STORE, job, recorder
from job_runner_kit import *  # noqa: F403  (its fixtures)
from job_runner_kit import with_nodes
from town_kit import Town, events

from spotlight.actors.protocol.down import NodeRefused
from spotlight.actors.protocol.trainer import TrainedIteration, TrainerReport
from spotlight.actors.protocol.up import NodeNotice, NodeReport, WorkerRefs, WorkerReport
from spotlight.actors.protocol.users import (
    CancelJob,
    DrainNode,
    JobStatus,
    NodeUnknown,
    PreemptNode,
)
from spotlight.actors.runtime import ActorRef
from spotlight.errors import NotAllowed
from spotlight.transport.control import BadInput, decode_message, encode_message

pytestmark = pytest.mark.virtual_time


async def test_a_node_cannot_take_the_name_of_another_one_that_is_there(town: Town) -> None:
    await with_nodes(town)
    await town.submit(job())
    system = await town.cluster.system("another spot")
    another = await recorder(system, "node")
    joining = NodeReport(1, "spot", "spot", another.ref, (), STORE)
    answer = await another.ask(town.coordinator, joining, timeout_s=5.0)
    assert isinstance(answer, NodeRefused)
    assert "`spot`" in answer.reason
    assert "--name" in answer.reason
    end = await town.ended()
    assert end.outcome == "finished"
    assert events(end.run_folder, "node_lost") == []


async def test_notice_for_a_node_that_is_not_there_names_those_that_are(town: Town) -> None:
    await with_nodes(town)
    answer = await town.ask(PreemptNode("spott", 30.0, cancel=False))
    assert answer == NodeUnknown(("reserved", "spot"))


async def test_notice_for_a_node_that_was_lost_says_so(town: Town) -> None:
    await with_nodes(town)
    await town.nodes["spot"].abort()
    await asyncio.sleep(40.0)
    for answer in (
        await town.ask(PreemptNode("spot", 30.0, cancel=False)),
        await town.ask(DrainNode("spot", cancel=False)),
    ):
        assert answer.nodes == ("reserved",)
        assert re.match(r"it was lost \d\d s ago ", answer.gone), answer


async def test_thousands_of_workers_may_be_there_when_a_job_begins(town: Town) -> None:
    """In one turn of the loop, and in the next."""
    system = await town.cluster.system("crowd")
    crowd = await recorder(system, "node")

    async def join(number: int) -> None:
        workers = tuple(
            WorkerRefs(f"n{number}/{index}", 1 + number * 64 + index, *[crowd.ref] * 3)
            for index in range(64)
        )
        node = NodeReport(1, f"n{number}", "spot", crowd.ref, workers, STORE)
        await crowd.ask(town.coordinator, node, timeout_s=30.0)

    for number in range(40):
        await join(number)
    await town.submit(job())
    for number in range(40, 60):
        await join(number)
    now = await town.wait(lambda now: len(now.workers) == 60 * 64)
    assert not now.outcome


async def test_nobody_but_its_runner_ends_a_job(town: Town) -> None:
    await with_nodes(town)
    accepted = await town.submit(job())
    stranger = await recorder(await town.cluster.system("stranger"), "job-tiny")
    stranger.tell(town.coordinator, JobStatus(job="mine", outcome="finished"))
    known = next(iter(town.nodes.values()))
    node = known.well_known(known.address, "node")
    left = NodeReport(99, "reserved", "reserved", node, (), STORE, left=True)
    stranger.tell(town.coordinator, left)
    await asyncio.sleep(1.0)
    assert town.system.dead_letters.counts["not_allowed"] == 1
    assert town.system.dead_letters.counts["unhandled"] == 1
    assert (await town.status()).job == "tiny"
    runner = town.system.well_known(town.system.address, f"coordinator/job-{accepted.job_id}")
    for word in (
        TrainerReport(1, 0, 1, trained=TrainedIteration(0, {}, 1.0)),
        TrainerReport(1, 0, error="no"),
        TrainerReport(1, 0, 0),
        CancelJob(),
        left,
        WorkerReport("reserved/0", 1, state="idle"),
    ):
        stranger.tell(runner, word)
    await asyncio.sleep(1.0)
    assert town.system.dead_letters.counts["not_allowed"] == 7
    assert (await town.ended()).outcome == "finished"


async def test_a_node_speaks_for_itself_only(town: Town) -> None:
    await with_nodes(town)
    known = next(iter(town.nodes.values()))
    stranger = await recorder(await town.cluster.system("stranger"), "node")
    joining = NodeReport(1, "another", "spot", known.well_known(known.address, "node"), (), STORE)
    with pytest.raises(NotAllowed, match="may not send NodeReport"):
        await stranger.ask(town.coordinator, joining, timeout_s=5.0)


async def test_a_node_speaks_of_its_own_workers_only(town: Town) -> None:
    """One that names another's would take them from the job for good."""
    await with_nodes(town)
    await town.submit(job())
    stranger = await recorder(await town.cluster.system("stranger"), "node")
    stolen = tuple(
        WorkerRefs(name, number, *[stranger.ref] * 3)
        for number, name in enumerate(("reserved/0", "spot/0"))
    )
    with pytest.raises(NotAllowed, match="may not send NodeReport"):
        joining = NodeReport(1, "another", "spot", stranger.ref, stolen, STORE)
        await stranger.ask(town.coordinator, joining, timeout_s=5.0)
    joining = NodeReport(1, "another", "spot", stranger.ref, (), STORE)
    await stranger.ask(town.coordinator, joining, timeout_s=5.0)
    leaving = NodeReport(
        2, "another", "spot", stranger.ref, stolen, STORE, NodeNotice("user", None)
    )
    with pytest.raises(NotAllowed, match="may not send NodeReport"):
        await stranger.ask(town.coordinator, leaving, timeout_s=5.0)
    assert (await town.ended()).outcome == "finished"


def test_a_node_of_too_many_workers_is_refused_as_it_is_read() -> None:
    ref = ActorRef("memory://n", "node", 1)
    workers = tuple(WorkerRefs(f"n/{number}", number, *[ref] * 3) for number in range(20_000))
    frame = encode_message(NodeReport(1, "n", "spot", ref, workers, STORE))
    with pytest.raises(BadInput, match="length"):
        decode_message(frame)
