"""Whoever has a key, and says what only others may: a spot node, its worker, a submitter, an
observer, and the holder of a token for nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.security.attack import attack, require, require_words
from benchmarks.security.clients import Person, Sayer
from benchmarks.security.network import RESERVED, SPOT
from benchmarks.security.site import HONEST, IMPOSTOR, Impostor, Site
from spotlight.actors.protocol.door import Enroll, GetGuests, GuestList, NewToken, RevokeAccess
from spotlight.actors.protocol.down import NodePlan
from spotlight.actors.protocol.sessions import (
    BeginSession,
    EndSession,
    GetFleet,
    GroupOrder,
    SessionBegan,
    SubmitGroups,
    TakeGroups,
)
from spotlight.actors.protocol.trainer import StartTrainer, Train, TrainerReport
from spotlight.actors.protocol.up import Pull, WorkerRefs
from spotlight.actors.protocol.users import CancelJob, DrainNode, GetStatus, PreemptNode, SubmitJob
from spotlight.actors.runtime import ActorRef
from spotlight.transport.control import KeyPair, Message

Say = Callable[[Site, Person, ActorRef], tuple[ActorRef, Message]]
"""Whom what is said to."""

_DEEDS: dict[str, Say] = {
    "submits a job": lambda site, who, me: (who.coordinator, SubmitJob(site.job(), "", False)),
    "cancels the job": lambda site, who, me: (who.coordinator, CancelJob()),
    "gives the reserved node notice": lambda site, who, me: (
        who.coordinator,
        PreemptNode(RESERVED, 0.0, False, yes=True),
    ),
    "gives the other spot node notice": lambda site, who, me: (
        who.coordinator,
        PreemptNode(SPOT, 0.0, False, yes=True),
    ),
    "drains the reserved node": lambda site, who, me: (
        who.coordinator,
        DrainNode(RESERVED, False, yes=True),
    ),
    "begins a session": lambda site, who, me: (
        who.coordinator,
        BeginSession("session", me, site.job().work, False),
    ),
    "asks how it goes": lambda site, who, me: (who.coordinator, GetStatus()),
    "makes a token for operators": lambda site, who, me: (
        who.door,
        NewToken("operator", None, 1, 3600.0),
    ),
    "revokes the reserved node": lambda site, who, me: (who.door, RevokeAccess(RESERVED)),
    "revokes the operator's token": lambda site, who, me: (
        who.door,
        RevokeAccess(site.operator_token.id),
    ),
    "asks who may come in": lambda site, who, me: (who.door, GetGuests()),
    "enrolls a node of pool `reserved`": lambda site, who, me: (
        who.door,
        Enroll("trainers", KeyPair.new().public, "reserved"),
    ),
    "reports as a node": lambda site, who, me: (
        who.coordinator,
        Impostor(who.coordinator, {}).report_of(me),
    ),
    "reports as a trainer": lambda site, who, me: (who.coordinator, TrainerReport(1, 0, 99)),
    "pulls work": lambda site, who, me: (
        who.coordinator,
        Pull("spot/0", 1, 1, 1, 1, (1,), (1,)),
    ),
    "gives a node's plan": lambda site, who, me: (who.coordinator, NodePlan(1, who.coordinator)),
}
_MAY: dict[str, set[str]] = {
    "a spot node": {"reports as a node"},
    "a spot node's worker": {"pulls work"},
    "a submitter": {"submits a job", "cancels the job", "begins a session", "asks how it goes"},
    "an observer": {"asks how it goes", "asks who may come in"},
    "the holder of a token for spot nodes": {"enrolls a node of pool `reserved`"},
}
"""What is theirs to say, and may be refused for other reasons."""


def _of_everybody(who: str, deed: str, say: Say) -> Callable[[Site], Awaitable[None]]:
    async def attempt(site: Site) -> None:
        before = _names(await site.guests())
        async with site.person(await keys_of(site, who)) as somebody:
            me = await somebody.system.spawn(Sayer, "node")
            to, message = say(site, somebody, me)
            said = await somebody.refusal(message, to, sender=me)
        require_words(said, "NotAllowed")
        require(_names(await site.guests()) == before, "other nodes and tokens are known now")

    attempt.__module__ = __name__
    return attempt


async def keys_of(site: Site, who: str) -> KeyPair:
    """Those by which the coordinator knows them."""
    if who == "a spot node's worker":
        return await worker_of_impostor(site)
    return {
        "a spot node": site.impostor,
        "a submitter": site.submitter,
        "an observer": site.observer,
        "the holder of a token for spot nodes": site.joiner,
    }[who]


async def worker_of_impostor(site: Site) -> KeyPair:
    """The keys of a worker for which the attackers' node has vouched."""
    return await worker_of(site, IMPOSTOR, site.impostor)


async def worker_of(site: Site, name: str, node_keys: KeyPair) -> KeyPair:
    """The keys of a worker for which the spot node with this name and these keys has vouched."""
    keys = KeyPair.new()
    refs = refs_of(name, keys)
    async with site.person(node_keys) as node:
        me = await node.system.spawn(Sayer, "node")
        report = Impostor(node.coordinator, {}).report_of(me, node=name, workers=(refs,))
        await node.ask(report, sender=me)
    return keys


def refs_of(node: str, keys: KeyPair) -> WorkerRefs:
    """The actors of a worker that has these keys."""
    worker = ActorRef(f"tcp://127.0.0.1:1/{keys.public}", "worker", 1)
    return WorkerRefs(f"{node}/0", 1, worker, worker, worker)


def _names(guests: GuestList) -> set[tuple[str, bool]]:
    nodes = {(node.name, node.revoked) for node in guests.nodes}
    return nodes | {(token.id, token.revoked) for token in guests.tokens}


for _who, _theirs in _MAY.items():
    for _deed, _say in _DEEDS.items():
        if _deed not in _theirs:
            attack(f"{_who} {_deed}")(_of_everybody(_who, _deed, _say))


@attack("a submitter cancels the job of another")
async def cancels_anothers(site: Site) -> None:
    await site.until_it_runs()
    async with site.person(site.submitter) as submitter:
        said = await submitter.refusal(CancelJob())
    require_words(said, "CancelRefused")
    status = await site.status()
    require(status.job == HONEST and status.outcome in ("", "finished"), status)


@attack("a submitter speaks to the session of another, and ends it", stage="alone")
async def anothers_session(site: Site) -> None:
    async with site.person(site.honest) as honest, site.person(site.submitter) as submitter:
        user = await honest.system.spawn(Sayer, "user")
        began = await honest.ask(
            BeginSession("honest", user, site.job().work, False), sender=user, timeout_s=60.0
        )
        require(isinstance(began, SessionBegan), began)
        assert isinstance(began, SessionBegan)
        try:
            me = await submitter.system.spawn(Sayer, "user")
            order = GroupOrder(1, "rollout", "x", (1,), 1)
            for message in (TakeGroups(), GetFleet(), SubmitGroups((order,)), EndSession()):
                said = await submitter.refusal(message, began.runner, sender=me)
                require(bool(said), f"{message} was answered")
            said = await submitter.refusal(
                BeginSession("honest", me, site.job().work, True), sender=me
            )
            require(bool(said), "it was taken over")
            require_words(await submitter.refusal(CancelJob()), "CancelRefused")
            fleet = await honest.refusal(GetFleet(), began.runner, sender=user)
            require(not fleet, f"the session has ended: {fleet}")
        finally:
            await honest.ask(EndSession(), began.runner, sender=user)


@attack("a spot node's worker says to the job what trainers and the coordinator say")
async def trainers_orders(site: Site) -> None:
    await site.until_it_runs()
    keys = KeyPair.new()
    async with (
        site.employed(workers=(refs_of(IMPOSTOR, keys),)) as job,
        site.person(keys) as worker,
    ):
        for to in (job.runner, job.dispatcher, worker.coordinator):
            for message in (
                Train(0, 0, ()),
                StartTrainer("job", site.job(), 0, 1, "", 0, (), 1),
                TrainerReport(1, 0, 99),
                CancelJob(),
            ):
                require_words(await worker.refusal(message, to), "NotAllowed")
