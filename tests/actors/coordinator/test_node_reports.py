"""What nodes report to a coordinator that has no job."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from runtime_kit import Cluster

from spotlight.actors.coordinator.coordinator import Coordinator
from spotlight.actors.protocol.up import NodeNotice, NodeReport
from spotlight.actors.protocol.users import NodeUnknown, PreemptNode
from spotlight.actors.runtime import Actor, ActorRef
from spotlight.store.runs_folder import RunsFolder
from spotlight.transport.tensors import BundleStore
from spotlight.types import StoreEndpoint
from spotlight_simulation.key_for_everybody import KeyForEverybody

LEFT = {"left": True, "notice": NodeNotice("user", 1.0)}


class Node:
    """One without workers, that says what a test has it say."""

    def __init__(self, actor: Actor, coordinator: ActorRef) -> None:
        self._actor = actor
        self._coordinator = coordinator
        store = StoreEndpoint("127.0.0.1", 1, "token", "machine", "/nowhere")
        self._report = NodeReport(1, "node", "spot", actor.ref, (), store)

    async def report(self, number: int, **changes: object) -> None:
        report = msgspec.structs.replace(self._report, number=number, **changes)
        await self._actor.ask(self._coordinator, report, timeout_s=30.0)

    async def is_there(self) -> bool:
        """Whether the coordinator takes it for there: what it says of one that is not."""
        answer = await self._actor.ask(
            self._coordinator, PreemptNode("nobody", 0.0, False), timeout_s=30.0
        )
        assert isinstance(answer, NodeUnknown)
        return answer.nodes == ("node",)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Cluster() as cluster:
        system = await cluster.system("coordinator")

        def coordinator() -> Coordinator:
            return Coordinator(
                RunsFolder(tmp_path),
                random.Random(0),
                lambda folder, token: BundleStore(folder, token=token),
                KeyForEverybody(system.post.transport),
            )

        ref = await system.spawn(coordinator, "coordinator")
        actor = Actor()
        await (await cluster.system("node")).spawn(lambda: actor, "node")
        yield Node(actor, ref)


async def test_a_node_that_reports_that_it_has_left_is_gone(node: Node) -> None:
    await node.report(1)
    assert await node.is_there()
    await node.report(2, **LEFT)
    assert not await node.is_there()


async def test_an_older_report_of_a_node_changes_nothing(node: Node) -> None:
    """It may have been on its way while the node joined again."""
    await node.report(2)
    await node.report(1, **LEFT)
    assert await node.is_there()
    await node.report(4, **LEFT)
    await node.report(3)
    assert not await node.is_there()
