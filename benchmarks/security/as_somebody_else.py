"""Whoever has a key, and says that it is somebody else, or speaks in the name of somebody else."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.security.attack import attack, require, require_words
from benchmarks.security.clients import RawSocket, Sayer, hello_of, raw_socket
from benchmarks.security.network import RESERVED, SPOT
from benchmarks.security.site import IMPOSTOR, Impostor, Site
from benchmarks.security.with_another_role import refs_of
from spotlight.actors.protocol.door import RevokeAccess
from spotlight.actors.protocol.up import (
    Completed,
    LeaseFailed,
    NodeReport,
    Pull,
    ReturnLease,
    WorkerRefs,
    WorkerReport,
)
from spotlight.actors.protocol.users import CancelJob, PreemptNode
from spotlight.actors.runtime import ActorRef
from spotlight.transport.control import KeyPair, key_of
from spotlight.transport.control.keys import place_of
from spotlight.transport.control.wire import Welcome
from spotlight.types import BundleOffer, StoreEndpoint


@attack("a spot node's key greets with the address of the coordinator, and of others")
async def greetings(site: Site) -> None:
    addresses = (
        site.address,
        f"tcp://127.0.0.1:1/{site.operator.public}",
        f"{place_of(site.address)}/{KeyPair.new().public}",
        place_of(site.address),
    )

    def attempt() -> list[object]:
        welcomed: list[object] = []
        for address in addresses:
            with raw_socket(site.address, site.impostor) as dealer:
                require(dealer.came_in(), "the key is the attackers' own, and does not come in")
                dealer.say(hello_of(site.impostor, address=address))
                answers = dealer.answers()
                welcomed += [(address, each) for each in answers if isinstance(each, Welcome)]
        return welcomed

    welcomed = await asyncio.to_thread(attempt)
    require(not welcomed, welcomed)


@attack("a spot node's connections take the names by which ZeroMQ knows others")
async def names_of_connections(site: Site) -> None:
    """Names that libzmq itself gives, and all the same one."""
    names = [b"operator", b"operator", *(b"\x00\x6b\x8b" + bytes([n, n]) for n in range(1, 9))]

    def attempt(opened: list[RawSocket]) -> None:
        for name in names:
            try:
                dealer = RawSocket(site.address, site.impostor, name=name)
            except Exception:  # libzmq takes no name that begins with a zero
                continue
            opened.append(dealer)
            if dealer.came_in():
                dealer.say(hello_of(site.impostor))

    opened: list[RawSocket] = []
    async with site.person(site.operator) as operator:
        before = await operator.refusal(_harmless(), operator.door)
        try:
            await asyncio.to_thread(attempt, opened)
            require(bool(opened), "no name was tried")
            after = await operator.refusal(_harmless(), operator.door)
            require((before, after) == ("", ""), (before, after))
        finally:
            for dealer in opened:
                dealer.close()


def _harmless() -> RevokeAccess:
    return RevokeAccess("nobody-of-that-name")


@attack("a spot node's frames say that they come from the operator, and from the coordinator")
async def sources(site: Site) -> None:
    """If they were believed the job would end, and the reserved node would leave."""
    await site.until_it_runs()
    async with site.person(site.operator) as operator, site.person(site.impostor) as node:
        await operator.refusal(_harmless(), operator.door)
        coordinator = ActorRef(site.address, "coordinator", 0)
        for source in (operator.system.ref, coordinator, ActorRef(site.address, "", 0)):
            for message in (CancelJob(), PreemptNode(RESERVED, 0.0, False, yes=True)):
                node.forge(source, node.coordinator, message)
            node.forge(source, node.door, RevokeAccess(RESERVED))
        await asyncio.sleep(0.5)
    there = {node.name for node in (await site.guests()).nodes if node.is_connected}
    require(RESERVED in there, there)
    revoked = [node.name for node in (await site.guests()).nodes if node.revoked]
    require(RESERVED not in revoked, revoked)


async def _report_refused(site: Site, **said: Any) -> None:
    async with site.person(site.impostor) as node:
        me = await node.system.spawn(Sayer, "node")
        refused = await node.refusal(Impostor(node.coordinator, said).report_of(me), sender=me)
    require(bool(refused), "the report was taken")


@attack("a spot node says that it is in the pool `reserved`")
async def reserved(site: Site) -> None:
    await _report_refused(site, pool="reserved")


@attack("a spot node says that it is another node")
async def other_nodes(site: Site) -> None:
    for name in (RESERVED, SPOT, "nobody"):
        await _report_refused(site, node=name, workers=())
    there = await site.nodes_there()
    require(there >= {RESERVED, SPOT}, there)


@attack("a spot node vouches for keys of others as for those of its workers")
async def vouching(site: Site) -> None:
    """And so would have them be called workers."""
    keys = {
        "the coordinator": key_of(site.address),
        "the operator": site.operator.public,
        "a submitter": site.honest.public,
        "an observer": site.observer.public,
        "a joiner": site.joiner.public,
    }
    own = ActorRef(f"tcp://127.0.0.1:1/{KeyPair.new().public}", "worker", 1)
    for key in keys.values():
        other = ActorRef(f"tcp://127.0.0.1:1/{key}", "worker", 1)
        for actors in ((other, other, other), (own, other, own), (own, own, other)):
            await _report_refused(site, workers=(WorkerRefs(f"{IMPOSTOR}/0", 1, *actors),))
    require(bool((await site.guests()).tokens), "the operator is none any more")


@attack("a spot node has workers under the name of another node")
async def workers_of_others(site: Site) -> None:
    worker = ActorRef(f"tcp://127.0.0.1:1/{KeyPair.new().public}", "worker", 1)
    for name in (f"{RESERVED}/0", f"{SPOT}/0", f"{SPOT}/1"):
        await _report_refused(site, workers=(WorkerRefs(name, 1, worker, worker, worker),))


@attack("a spot node's worker pulls, delivers, gives back and reports for other workers")
async def results_of_others(site: Site) -> None:
    """If one of these counted, the honest job would lose a worker, or come to another result."""
    await site.until_it_runs()
    keys = KeyPair.new()
    store = StoreEndpoint("127.0.0.1", 1, "token", "nowhere", "/nowhere")
    async with (
        site.employed(workers=(refs_of(IMPOSTOR, keys),)) as job,
        site.person(keys) as worker,
    ):
        me = await worker.system.spawn(Sayer, "worker")
        for who in (f"{SPOT}/0", f"{RESERVED}/0"):
            for lease in range(1, 40):
                offer = BundleOffer(f"samples/{SPOT}/0/1-{lease}", 1, 1, store)
                done = Completed(who, 1, lease, ("x",), offer, ((1e30,),), 1, 0.0)
                failed = LeaseFailed(who, 1, lease, "it failed")
                for message in (done, failed, ReturnLease(who, 1, lease)):
                    worker.system.tell(job.dispatcher, message, sender=me)
            pull = Pull(who, 1, 1, 1, 1, (1,), (1,))
            require_words(await worker.refusal(pull, job.dispatcher, sender=me), "NotAllowed")
            report = WorkerReport(who, 1, cannot_serve="it is sick", ends=True, state="gone")
            require_words(await worker.refusal(report, job.runner, sender=me), "NotAllowed")


@attack("a report that was overtaken by a later one is said again")
async def old_report(site: Site) -> None:
    """The older one says that the node has left."""
    async with site.person(site.impostor) as node:
        me = await node.system.spawn(Sayer, "node")
        actor = Impostor(node.coordinator, {"workers": ()})
        later: NodeReport = actor.report_of(me, 10)
        await node.ask(later, sender=me)
        await node.ask(actor.report_of(me, 3, left=True), sender=me)
        await node.ask(actor.report_of(me, 11), sender=me)
    connected = {each.name for each in (await site.guests()).nodes if each.is_connected}
    require(connected >= {RESERVED, SPOT}, connected)
