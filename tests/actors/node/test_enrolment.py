"""How a node gets its key known, on virtual time: the coordinator may be away, refuse, and
forget."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node_kit import FakeCoordinator, FakeLauncher, memory_keys

from spotlight.actors.node.enrolment import Enrolment
from spotlight.actors.node.node import NodeScheduler, NodeSettings
from spotlight.actors.protocol.door import Enroll, Enrolled, NotEnrolled
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.protocol.up import WorkerRefs, WorkerUp
from spotlight.actors.runtime import Actor, ActorSystem, handles
from spotlight.errors import AccessLost, AccessRefused, UserError
from spotlight.transport.control import Guests
from spotlight.transport.tensors import BundleStore
from spotlight_simulation.memory_network import MemoryNetwork

pytestmark = pytest.mark.virtual_time

KEY = "k" * 43


class FakeDoor(Actor):
    """Answers what it is told to, and lets in whom it enrolls."""

    def __init__(self) -> None:
        self.refusal: NotEnrolled | None = None
        self.asked: list[tuple[str, Enroll]] = []
        self.lets_in = "node"

    @handles(Enroll)
    async def on_enroll(self, message: Enroll) -> Enrolled | NotEnrolled:
        """Note it."""
        self.asked.append((self.sender_address, message))
        if self.refusal is not None:
            return self.refusal
        self.system.guests.admit(self.lets_in, "node")
        return Enrolled(message.node, message.pool or "spot")


class Site:
    """A network with a joiner, and a coordinator that may come later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = MemoryNetwork(random.Random(0))
        self.door = FakeDoor()
        self.coordinator = FakeCoordinator()
        self.systems: list[ActorSystem] = []
        self.joiner_is_known = True
        self.ended: list[UserError | None] = []
        self.enrolment = Enrolment(
            "memory://coordinator",
            Enroll("n", KEY, None),
            lambda: self.network.transport("token", guests=Guests({"coordinator": "coordinator"})),
            random.Random(0),
        )

    async def system(self, name: str, guests: Guests) -> ActorSystem:
        transport = self.network.transport(name, guests=guests)
        system = ActorSystem(transport, rng=random.Random(name), rights=MAY_SAY)
        await system.start()
        self.systems.append(system)
        return system

    async def open_coordinator(self) -> None:
        guests = Guests({"token": "joiner"} if self.joiner_is_known else {})
        self.coordinator_system = await self.system("coordinator", guests)
        await self.coordinator_system.spawn(lambda: self.door, "door")
        await self.coordinator_system.spawn(lambda: self.coordinator, "coordinator")

    async def open_node(self) -> None:
        self.launcher, store = FakeLauncher(), BundleStore(self.folder, token="token")
        settings = NodeSettings("n", "spot", 1, "127.0.0.1", "memory://coordinator", self.folder, 1)
        system = await self.system("node", Guests())
        await store.start()
        node = await system.spawn(
            lambda: NodeScheduler(
                settings,
                store,
                self.launcher,
                memory_keys,
                enrolment=self.enrolment,
                left=self.ended.append,
            ),
            "node",
        )
        self.store = store
        await asyncio.sleep(0.1)
        refs = WorkerRefs("n/0", 1, *[node] * 3)
        system.tell(node, WorkerUp(refs, self.launcher.keys["n/0"].start, "simulated"))

    async def aclose(self) -> None:
        for system in reversed(self.systems):
            await system.aclose()
        if hasattr(self, "store"):
            await self.store.aclose()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    yield site
    await site.aclose()


async def test_a_node_enrolls_with_its_fresh_key(site: Site) -> None:
    await site.open_coordinator()
    assert await site.enrolment.once() == Enrolled("n", "spot")
    assert site.door.asked == [("memory://token", Enroll("n", KEY, None))]


async def test_a_coordinator_that_is_away_is_waited_for(site: Site) -> None:
    waiting = asyncio.create_task(site.enrolment.insist())
    await asyncio.sleep(300.0)
    assert not waiting.done()
    await site.open_coordinator()
    await asyncio.sleep(10.0)
    assert waiting.result() == Enrolled("n", "spot")


async def test_a_token_that_is_not_known_is_said_at_once(site: Site) -> None:
    site.joiner_is_known = False
    await site.open_coordinator()
    with pytest.raises(AccessRefused, match="--join: the coordinator does not know this join"):
        await site.enrolment.insist()
    assert not site.door.asked


async def test_a_refusal_for_good_is_said_at_once_and_in_the_words_of_the_door(site: Site) -> None:
    await site.open_coordinator()
    site.door.refusal = NotEnrolled("the join token `x` expired")
    with pytest.raises(AccessRefused, match="the join token `x` expired"):
        await site.enrolment.insist()
    assert len(site.door.asked) == 1


async def test_a_name_that_may_become_free_is_waited_for_for_a_while(site: Site) -> None:
    await site.open_coordinator()
    site.door.refusal = NotEnrolled("a node `n` is there", soon=True)
    waiting = asyncio.create_task(site.enrolment.insist())
    await asyncio.sleep(5.0)
    assert not waiting.done()
    site.door.refusal = None
    await asyncio.sleep(1.0)
    assert waiting.result() == Enrolled("n", "spot")
    site.door.refusal = NotEnrolled("a node `n` is there", soon=True)
    async with asyncio.timeout(60.0):
        with pytest.raises(AccessRefused, match="a node `n` is there"):
            await site.enrolment.insist()


async def test_a_name_that_is_kept_for_another_is_waited_for_for_longer(site: Site) -> None:
    await site.open_coordinator()
    site.door.refusal = NotEnrolled("a node `n` may yet come", soon=True, is_expected=True)
    waiting = asyncio.create_task(site.enrolment.insist())
    await asyncio.sleep(360.0)
    assert not waiting.done()
    site.door.refusal = None
    await asyncio.sleep(1.0)
    assert waiting.result() == Enrolled("n", "spot")


async def test_a_name_whose_node_came_after_all_is_given_up_at_once(site: Site) -> None:
    await site.open_coordinator()
    site.door.refusal = NotEnrolled("a node `n` may yet come", soon=True, is_expected=True)
    waiting = asyncio.create_task(site.enrolment.insist())
    await asyncio.sleep(60.0)
    site.door.refusal = NotEnrolled("a node `n` is there", soon=True)
    await asyncio.sleep(1.0)
    with pytest.raises(AccessRefused, match="a node `n` is there"):
        waiting.result()


async def test_a_name_that_stays_kept_is_given_up_in_the_end(site: Site) -> None:
    await site.open_coordinator()
    site.door.refusal = NotEnrolled("a node `n` may yet come", soon=True, is_expected=True)
    with pytest.raises(AccessRefused, match="a node `n` may yet come"):
        async with asyncio.timeout(700.0):
            await site.enrolment.insist()


async def test_a_node_that_was_forgotten_enrolls_again_and_goes_on(site: Site) -> None:
    await site.open_coordinator()
    await site.open_node()  # the coordinator has lost its book: it does not know the node
    await asyncio.sleep(20.0)
    assert len(site.door.asked) == 1
    assert site.coordinator.reports
    assert site.ended == []


async def test_a_node_that_was_revoked_ends_and_says_why(site: Site) -> None:
    await site.open_coordinator()
    await site.open_node()
    await asyncio.sleep(20.0)
    site.door.refusal = NotEnrolled("the node `n` was revoked")
    site.coordinator_system.dismiss("node", "revoked by the operator")
    await asyncio.sleep(20.0)
    ended = site.ended[0]
    assert isinstance(ended, AccessLost)
    assert (str(ended), ended.exit_code) == ("the node `n` was revoked", 3)


async def test_a_node_whose_token_was_revoked_as_well_ends_too(site: Site) -> None:
    await site.open_coordinator()
    await site.open_node()
    await asyncio.sleep(20.0)
    for key in ("token", "node"):
        site.coordinator_system.dismiss(key, "revoked by the operator")
    await asyncio.sleep(20.0)
    assert isinstance(site.ended[0], AccessLost)


async def test_workers_know_their_node_each_other_and_the_coordinator(site: Site) -> None:
    await site.open_coordinator()
    await site.open_node()
    keys = site.launcher.keys["n/0"]
    assert keys.pair.public == "n/0"
    assert keys.guests == {"n/0": "worker", "node": "node", "coordinator": "coordinator"}
