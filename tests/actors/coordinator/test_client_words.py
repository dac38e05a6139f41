"""What a client says of an answer that is no success."""

from __future__ import annotations

import pytest
from runtime_kit import Cluster

from spotlight.actors.protocol.users import NodeUnknown, PreemptNode
from spotlight.actors.runtime import Actor, handles
from spotlight.errors import UnknownNode
from spotlight.running.client import CoordinatorClient


class _Coordinator(Actor):
    """Knows of one node that it has left."""

    @handles(PreemptNode)
    async def on_preempt(self, message: PreemptNode) -> NodeUnknown:
        return NodeUnknown(("b",), "it left 40 s ago" if message.node == "a" else "")


async def test_of_a_node_that_has_left_it_says_when() -> None:
    async with Cluster() as cluster:
        system = await cluster.system("coordinator")
        client = CoordinatorClient(system, await system.spawn(_Coordinator, "coordinator"))
        said = r"the node `a` is not there any more: it left 40 s ago; there are: b"
        with pytest.raises(UnknownNode, match=said):
            await client.preempt("a", 30.0, cancel=False)
        with pytest.raises(UnknownNode, match="there is no node `c`; there are: b"):
            await client.preempt("c", 30.0, cancel=False)
