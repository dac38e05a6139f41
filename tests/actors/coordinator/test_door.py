"""The coordinator's door, as those see it who come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from door_kit import COORDINATOR, OPERATOR, Hall, Visitor, key
from runtime_kit import Cluster

from spotlight.actors.coordinator.key_ring import door_file
from spotlight.actors.protocol.door import (
    AccessRevoked,
    Enroll,
    Enrolled,
    GetGuests,
    GuestList,
    NameUnknown,
    NewToken,
    NotEnrolled,
    RevokeAccess,
    TokenMade,
)
from spotlight.actors.protocol.down import NodePlan, NodeRefused
from spotlight.actors.protocol.users import (
    Acknowledged,
    GetStatus,
    JobStatus,
    NodeUnknown,
    PreemptNode,
)
from spotlight.actors.runtime import ActorSystem
from spotlight.errors import NotAdmitted, NotAllowed, PeerUnreachable
from spotlight.transport.control import Dialect

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def hall(tmp_path: Path) -> AsyncIterator[Hall]:
    async with Cluster() as cluster:
        hall = Hall(cluster, tmp_path)
        await hall.open()
        yield hall


@pytest.fixture
async def operator(hall: Hall) -> ActorSystem:
    return await hall.process(OPERATOR)


async def enrolled(hall: Hall, name: str = "node", pool: Any = "spot") -> Visitor:
    """A node that came by a token of one use."""
    join = hall.token("node", pool)
    joiner = await hall.holder(join)
    assert await hall.ask(joiner, Enroll(name, key(name))) == Enrolled(name, pool)
    await joiner.aclose()
    return await Visitor.come(hall, name, pool)


async def nodes(hall: Hall, operator: ActorSystem) -> tuple[str, ...]:
    """Those that the coordinator takes for there: what it says of one that is not."""
    answer = await hall.ask(operator, PreemptNode("nobody", 0.0, False), COORDINATOR)
    assert isinstance(answer, NodeUnknown)
    return answer.nodes


async def test_a_node_joins_by_a_token_and_is_known_by_its_own_key(
    hall: Hall, operator: ActorSystem
) -> None:
    node = await enrolled(hall)
    assert isinstance(await node.report("node"), NodePlan)
    assert await nodes(hall, operator) == ("node",)


async def test_a_stranger_gets_no_connection(hall: Hall) -> None:
    stranger = await hall.process(key("stranger"))
    with pytest.raises(NotAdmitted):
        await hall.ask(stranger, Enroll("node", key("node")))


async def test_a_joiner_says_nothing_else(hall: Hall) -> None:
    joiner = await hall.holder(hall.token("node", "spot"))
    for message, actor in (
        (GetGuests(), "door"),
        (NewToken("operator", None, 1, 60.0), "door"),
        (GetStatus(), COORDINATOR),
    ):
        with pytest.raises(NotAllowed):
            await hall.ask(joiner, message, actor)


async def test_an_expired_token_hears_why(hall: Hall) -> None:
    join = hall.token("node", "spot")
    await asyncio.sleep(3601.0)
    answer = await hall.ask(await hall.holder(join), Enroll("node", key("node")))
    assert isinstance(answer, NotEnrolled)
    assert join.id in answer.reason
    assert "spotlight token new" in answer.reason


@pytest.mark.parametrize(
    ("name", "changes"), [("another", {}), ("node", {"pool": "reserved"})], ids=["name", "pool"]
)
async def test_a_node_is_refused_that_is_not_what_its_key_says(
    hall: Hall, operator: ActorSystem, name: str, changes: Any
) -> None:
    """A fake node of the pool `reserved` would be given a trainer's seat."""
    node = await enrolled(hall)
    answer = await node.report(name, **changes)
    assert isinstance(answer, NodeRefused)
    assert "`node` of the pool spot" in answer.reason
    assert await nodes(hall, operator) == ()


async def test_workers_are_let_in_that_a_node_vouches_for(hall: Hall) -> None:
    node = await enrolled(hall, "big", "reserved")
    worker = await hall.process(key("worker"))
    with pytest.raises(NotAdmitted):
        await hall.ask(worker, GetStatus(), COORDINATOR)
    await node.report("big", "worker")
    await asyncio.sleep(10.0)
    with pytest.raises(NotAllowed):  # it is known now, as a trainer, who does not ask that
        await hall.ask(worker, GetStatus(), COORDINATOR)


async def test_a_node_that_vouches_for_somebody_else_is_refused(
    hall: Hall, operator: ActorSystem
) -> None:
    other = await enrolled(hall, "other", "reserved")
    await other.report("other", "trainer")
    node = await enrolled(hall)
    for worker in ("trainer", "other"):
        answer = await node.report("node", worker)
        assert isinstance(answer, NodeRefused)
        assert "that of the node `other`" in answer.reason
    assert await nodes(hall, operator) == ("other",)


async def test_a_revoked_node_and_its_workers_are_out_at_once(
    hall: Hall, operator: ActorSystem
) -> None:
    node = await enrolled(hall, "big", "reserved")
    await node.report("big", "worker")
    worker = await hall.process(key("worker"))
    with pytest.raises(NotAllowed):
        await hall.ask(worker, GetStatus(), COORDINATOR)
    began = asyncio.get_running_loop().time()
    assert await hall.ask(operator, RevokeAccess("big")) == AccessRevoked((), ())
    await asyncio.wait_for(node.watcher.first_down.wait(), 1.0)
    assert asyncio.get_running_loop().time() - began < 0.05
    assert await nodes(hall, operator) == ()
    await asyncio.sleep(10.0)
    for system in (node.system, worker):
        with pytest.raises(NotAdmitted):
            await hall.ask(system, GetStatus(), COORDINATOR)


async def test_a_revoked_user_is_out_and_is_told_why_by_the_door(
    hall: Hall, operator: ActorSystem
) -> None:
    join = hall.token("submitter")
    user = await hall.holder(join)
    assert isinstance(await hall.ask(user, GetStatus(), COORDINATOR), JobStatus)
    assert await hall.ask(operator, RevokeAccess(join.id)) == AccessRevoked((), ())
    await asyncio.sleep(10.0)
    with pytest.raises(NotAllowed):
        await hall.ask(user, GetStatus(), COORDINATOR)
    answer = await hall.ask(user, Enroll("node", key("node")))
    assert isinstance(answer, NotEnrolled)
    assert f"`{join.id}` was revoked" in answer.reason


async def test_a_user_whose_token_expires_is_out_without_being_looked_at(hall: Hall) -> None:
    join = hall.token("observer")
    user = await hall.holder(join)
    assert isinstance(await hall.ask(user, GetGuests()), GuestList)
    await asyncio.sleep(3600.0 + hall.keys.timings.check_s)
    await asyncio.sleep(10.0)
    with pytest.raises(NotAllowed):
        await hall.ask(user, GetGuests())


async def test_an_operator_makes_tokens_and_nobody_else_does(
    hall: Hall, operator: ActorSystem
) -> None:
    made = await hall.ask(operator, NewToken("node", "spot", 5, 60.0))
    assert isinstance(made, TokenMade)
    assert made.token.startswith(f"sl1.{COORDINATOR}.{COORDINATOR}.")
    for role in ("submitter", "observer"):
        user = await hall.holder(hall.token(role))  # type: ignore[arg-type]
        for message in (NewToken("operator", None, 1, 60.0), RevokeAccess("x")):
            with pytest.raises(NotAllowed):
                await hall.ask(user, message)


async def test_a_token_that_cannot_be_is_refused(hall: Hall, operator: ActorSystem) -> None:
    answer = await hall.ask(operator, NewToken("node", None, 5, 60.0))
    assert isinstance(answer, NotEnrolled)
    assert "pool" in answer.reason


async def test_nobody_of_that_name_is_answered_with_those_there_are(
    hall: Hall, operator: ActorSystem
) -> None:
    await enrolled(hall)
    answer = await hall.ask(operator, RevokeAccess("nodes"))
    assert isinstance(answer, NameUnknown)
    assert answer.nodes == ("node",)


async def test_the_list_says_who_may_come_in_and_who_is_there(
    hall: Hall, operator: ActorSystem
) -> None:
    node = await enrolled(hall)
    await node.report("node")
    await enrolled(hall, "away", "reserved")
    await hall.ask(operator, RevokeAccess("away"))
    listed = await hall.ask(operator, GetGuests())
    assert isinstance(listed, GuestList)
    assert [(it.name, it.pool, it.is_connected, it.revoked) for it in listed.nodes] == [
        ("away", "reserved", False, True),
        ("node", "spot", True, False),
    ]
    assert [(it.role, it.uses_left) for it in listed.tokens] == [
        ("operator", 1),
        ("node", 0),
        ("node", 0),
    ]
    assert listed.tokens[0].expires_in_s is None


async def test_the_list_says_whose_build_does_not_fit_until_it_does(
    hall: Hall, operator: ActorSystem
) -> None:
    old = Dialect("0.0.9", "0123456789abcdef")
    node = await enrolled(hall)
    await node.system.aclose()
    join = hall.token("node", "spot")
    for guest in (key("node"), join.keys.public):
        hall.system.post.other_version(f"memory://{guest}", old)
    listed = await hall.ask(operator, GetGuests())
    assert [it.software for it in listed.nodes] == ["0.0.9 (01234567)"]
    assert {it.software for it in listed.tokens if it.id == join.id} == {"0.0.9 (01234567)"}
    assert {it.software for it in listed.tokens if it.id != join.id} == {""}
    again = await Visitor.come(hall, "node", "spot")
    await again.report("node")
    listed = await hall.ask(operator, GetGuests())
    assert [it.software for it in listed.nodes] == [""]


async def test_a_node_s_name_is_free_once_its_process_is_gone(hall: Hall) -> None:
    node = await enrolled(hall)
    await node.report("node")
    joiner = await hall.holder(hall.token("node", "spot"))
    answer = await hall.ask(joiner, Enroll("node", key("fresh")))
    assert isinstance(answer, NotEnrolled)
    assert answer.soon
    await node.system.aclose()
    await asyncio.sleep(1.0)
    assert await hall.ask(joiner, Enroll("node", key("fresh"))) == Enrolled("node", "spot")


async def test_what_is_answered_is_known_to_the_next_coordinator(
    hall: Hall, operator: ActorSystem
) -> None:
    node = await enrolled(hall)
    await node.report("node", "worker")
    gone = await enrolled(hall, "gone")
    await hall.ask(operator, RevokeAccess("gone"))
    await hall.system.abort()
    await asyncio.sleep(1.0)
    await hall.open()
    await asyncio.sleep(10.0)
    assert isinstance(await node.report("node", "worker"), NodePlan | Acknowledged)
    assert await nodes(hall, operator) == ("node",)
    with pytest.raises(PeerUnreachable):
        await gone.report("gone")


async def test_a_disk_that_refuses_lets_nobody_in_but_still_shows_out(
    hall: Hall, operator: ActorSystem
) -> None:
    node = await enrolled(hall)
    await node.report("node")
    door_file(hall.runs).unlink()
    door_file(hall.runs).mkdir()
    for message in (NewToken("observer", None, 1, 60.0), RevokeAccess("node")):
        answer = await hall.ask(operator, message)
        assert isinstance(answer, NotEnrolled)
        assert "make room" in answer.reason
    assert await nodes(hall, operator) == ()


@pytest.mark.parametrize("pool", [None, "spot"])
async def test_an_operator_lets_a_node_in_when_it_says_the_pool(
    hall: Hall, operator: ActorSystem, pool: Any
) -> None:
    answer = await hall.ask(operator, Enroll("node", key("node"), pool))
    assert isinstance(answer, NotEnrolled if pool is None else Enrolled)
