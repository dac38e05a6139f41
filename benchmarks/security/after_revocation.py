"""Whoever was let in, and is not any more."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.security.attack import attack, require
from benchmarks.security.clients import Sayer, is_kept_out
from benchmarks.security.network import RESERVED, SPOT
from benchmarks.security.site import Impostor, Site
from benchmarks.security.web import put
from benchmarks.security.with_another_role import worker_of
from spotlight.actors.protocol.door import Enroll, RevokeAccess
from spotlight.actors.protocol.users import GetStatus, SubmitJob
from spotlight.transport.control import KeyPair

_TRIES = 9
_END_S = 20.0


async def revoke_ms(site: Site) -> float:
    """The time from the operator's message to the end of a node's connection, as the node sees it:
    the middle one of some tries. [ms]"""
    times = []
    for number in range(_TRIES):
        name = f"revoked-{number}"
        keys = await site.enrolled(name)
        async with site.person(site.operator) as operator, site.line(keys) as end:
            await operator.ask(GetStatus())  # it is connected, as a command is when it speaks
            await asyncio.wait_for(end.up.wait(), _END_S)
            began = time.monotonic()
            said = asyncio.create_task(operator.ask(RevokeAccess(name), operator.door))
            await asyncio.wait_for(end.lost.wait(), _END_S)
            await said
            times.append(end.lost_at - began)
    return 1000 * statistics.median(times)


@attack("a revoked node stays, and comes back with its key and with others")
async def node(site: Site) -> None:
    keys = await site.enrolled("leaver")
    async with site.line(keys) as end:
        await asyncio.wait_for(end.up.wait(), _END_S)
        await site.revoke("leaver")
        await asyncio.wait_for(end.lost.wait(), _END_S)
    async with site.person(keys) as node:
        me = await node.system.spawn(Sayer, "node")
        report = Impostor(node.coordinator, {}).report_of(me, node="leaver", workers=())
        said = await node.refusal(report, sender=me)
    require(is_kept_out(said), said)


@attack("a revoked node's workers go on")
async def workers(site: Site) -> None:
    keys = await site.enrolled("employer")
    worker = await worker_of(site, "employer", keys)
    async with site.line(worker) as end:
        await asyncio.wait_for(end.up.wait(), _END_S)
        await site.revoke("employer")
        try:
            await asyncio.wait_for(end.lost.wait(), _END_S)
        except TimeoutError:
            require(False, "the worker's connection is still there")
    async with site.person(worker) as somebody:
        said = await somebody.refusal(GetStatus())
    require(is_kept_out(said), said)


@attack("a revoked user stays, and comes back")
async def user(site: Site) -> None:
    token = await site.new_token("submitter")
    async with site.line(token.keys) as end:
        await asyncio.wait_for(end.up.wait(), _END_S)
        await site.revoke(token.id)
        await asyncio.wait_for(end.lost.wait(), _END_S)
    async with site.person(token.keys) as somebody:
        said = await somebody.refusal(SubmitJob(site.job(), "", False))
    require(bool(said), "its job was taken")


@attack("a revoked node takes the name of another, or its own again, with a token that it has")
async def comes_back(site: Site) -> None:
    """A token that is still good lets a node in that has the token, and the operator is told so;
    the name of a revoked node may be free again or not, but never another's."""
    keys = await site.enrolled("returner")
    await site.revoke("returner")
    async with site.person(site.joiner) as joiner:
        said = await joiner.refusal(Enroll("returner", keys.public), joiner.door)
        require(bool(said), "the revoked key was let in again")
        said = await joiner.refusal(Enroll(RESERVED, KeyPair.new().public), joiner.door)
        require(bool(said), "it is the reserved node now")
    require(await site.nodes_there() >= {RESERVED, SPOT}, "they are gone")


@attack("a revoked node uses the store's token that it was given")
async def store_token(site: Site) -> None:
    keys = await site.enrolled("thief")
    async with site.joined(name="thief", keys=keys) as sink:
        allowed = await asyncio.to_thread(put, sink, "/samples/thief/0/7-6", b"its own")
        await site.revoke("thief")
        await asyncio.sleep(0.2)
        status = await asyncio.to_thread(put, sink, "/samples/thief/0/7-7", b"forged")
    require(allowed == 200, f"what it might leave was answered with {allowed}")
    require(status in (0, 401, 403), status)
