"""Users and nodes at the door of a coordinator, over real connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from spotlight.actors.protocol.dialect import own_dialect
from spotlight.actors.protocol.door import Enroll, Enrolled, NotEnrolled
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.runtime import Actor, ActorSystem, Down, handles
from spotlight.errors import (
    NotAdmitted,
    NotAllowed,
    RequestRefused,
    UnknownJob,
    UnknownNode,
)
from spotlight.join_token import JoinToken
from spotlight.running.client import connect, end_of_token
from spotlight.running.join_option import transport_of
from spotlight.transport.control import Guests, ZeroMQTransport
from spotlight.transport.control.keys import KeyPair
from tests.running.door_site import Site
from tests.small_run import small_job


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.open()
    yield site
    await site.system.aclose()


async def enroll(join: JoinToken, node: str, key: str) -> object:
    system = ActorSystem(transport_of(join), rng=random.Random(1), rights=MAY_SAY)
    await system.start()
    try:
        door = system.well_known(join.coordinator, "door")
        return await system.ask(door, Enroll(node, key), timeout_s=10.0)
    finally:
        await system.aclose()


class Watcher(Actor):
    """A node that waits for the end of its coordinator."""

    def __init__(self, join: JoinToken) -> None:
        self._join = join
        self.is_cut = asyncio.Event()

    async def started(self) -> None:
        self.watch(self.system.well_known(self._join.coordinator, "coordinator"))

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        self.is_cut.set()


async def test_a_token_is_made_used_listed_and_revoked(site: Site) -> None:
    async with connect(site.operator) as client:
        join = JoinToken.parse("--join", await client.new_token("node", "spot", 1, 60.0))
        key = KeyPair.new().public
        assert await enroll(join, "node", key) == Enrolled("node", "spot")
        assert await enroll(join, "node", key) == Enrolled("node", "spot")
        guests = await client.guests()
        assert [node.name for node in guests.nodes] == ["node"]
        assert guests.tokens[1].uses_left == 0
        used_up = await enroll(join, "another", KeyPair.new().public)
        assert isinstance(used_up, NotEnrolled)
        assert "used up" in used_up.reason
        done = await client.revoke("node")
        assert done.tokens == ()
        with pytest.raises(RequestRefused, match="no node and no token `nodes`; nodes: node"):
            await client.revoke("nodes")


async def test_a_revoked_node_is_cut_off_before_any_heartbeat_is_missed(site: Site) -> None:
    async with connect(site.operator) as client:
        join = JoinToken.parse("--join", await client.new_token("node", "spot", 1, 60.0))
        pair = KeyPair.new()
        await enroll(join, "node", pair.public)
        guests = Guests({join.key: "coordinator"})
        node = ActorSystem(
            ZeroMQTransport(keys=pair, guests=guests, dialect=own_dialect()),
            rng=random.Random(2),
            rights=MAY_SAY,
        )
        await node.start()
        watcher = Watcher(join)
        await node.spawn(lambda: watcher, "node")
        await asyncio.sleep(0.5)
        assert not watcher.is_cut.is_set()
        await client.revoke("node")
        async with asyncio.timeout(5.0):
            await watcher.is_cut.wait()
        with pytest.raises(NotAdmitted):
            coordinator = node.well_known(join.coordinator, "door")
            await asyncio.sleep(1.0)
            await node.ask(coordinator, Enroll("node", pair.public), timeout_s=5.0)
        await node.aclose()


async def test_whoever_has_an_ended_token_hears_how_it_ended(site: Site) -> None:
    async with connect(site.operator) as client:
        join = JoinToken.parse("--join", await client.new_token("observer", None, 1, 60.0))
        assert await end_of_token(join) == ""
        async with connect(join) as observer:
            await observer.guests()
            with pytest.raises(NotAllowed):
                await observer.cancel()
        await client.revoke(join.id)
    async with connect(join) as observer:
        with pytest.raises(NotAllowed):
            await observer.guests()
    assert f"`{join.id}` was revoked" in await end_of_token(join)
    assert await end_of_token(site.operator) == ""


async def test_whoever_has_a_mistyped_token_is_not_admitted(site: Site) -> None:
    wrong = JoinToken(site.operator.place, site.operator.key, site.operator.id, bytes(16))
    async with connect(wrong) as client:
        with pytest.raises(NotAdmitted):
            await client.guests()


async def test_a_submitter_gives_no_higher_priority_than_its_token(site: Site) -> None:
    async with connect(site.operator) as client:
        token = await client.new_token("submitter", None, 1, 60.0, 3)
    async with connect(JoinToken.parse("--join", token)) as client:
        with pytest.raises(RequestRefused, match="4 is above 3, the highest of your join token"):
            await client.submit(small_job(), "", resume=False, priority=4)
        assert (await client.jobs()).jobs == ()


async def test_jobs_and_nodes_that_nobody_knows_are_errors_of_their_own(site: Site) -> None:
    async with connect(site.operator) as client:
        for ask in (client.status("x"), client.cancel("x")):
            with pytest.raises(UnknownJob, match="no job `x`"):
                await ask
        for tell in (client.drain("x", cancel=False), client.preempt("x", 1.0, cancel=False)):
            with pytest.raises(UnknownNode, match="there is no node `x`; there are: none"):
                await tell
