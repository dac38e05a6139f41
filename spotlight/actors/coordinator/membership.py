"""The nodes of a running job as they come and go: who is admitted, what each is told, and who hears
of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from spotlight.actors.coordinator.ledger import Ledger
from spotlight.actors.coordinator.roster import Roster
from spotlight.actors.protocol import (
    AddWorkers,
    AdmitNode,
    JoinNode,
    NodeDown,
    NodeLeaving,
    RemoveWorkers,
)
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor, ActorRef, Message
from spotlight.policies.preemption import JoinBackoff
from spotlight.timings import RejoinTimings


class NodeMembership:
    """See the module's docstring.

    Args:
        actor: the job runner, which tells on its behalf.
        coordinator: told when a node that had to wait may join.
        dispatcher, ledger: hear of every worker.
        event: writes an event to the run folder.
    """

    def __init__(
        self,
        actor: Actor,
        roster: Roster,
        *,
        coordinator: ActorRef,
        dispatcher: ActorRef,
        ledger: Ledger,
        event: Callable[..., None],
        timings: RejoinTimings,
    ) -> None:
        self._actor = actor
        self._roster = roster
        self._coordinator = coordinator
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._event = event
        self._backoff = JoinBackoff(timings)
        self.preemptions = 0
        """Nodes that had notice, or were lost without."""

    def may_join(self, node: JoinNode) -> bool:
        """Whether a node may join now; one that keeps coming and going must wait."""
        if node.node in self._roster.nodes:
            return True
        wait_s = self._backoff.wait_s(node.node, self._now())
        if wait_s > 0 and node.pool == "spot":
            self._event("node_must_wait", node=node.node, seconds=round(wait_s, 1))
            self._actor.run_task(self._admit_later(node.node, wait_s))
            return False
        names = [worker.worker for worker in node.workers]
        self._event("node_joined", node=node.node, pool=node.pool, workers=names)
        return True

    def join(self, node: JoinNode) -> None:
        """A node is there, or its workers have changed."""
        came, went = self._roster.join(node)
        names = tuple(worker.worker for worker in went)
        if names:
            self._remove(RemoveWorkers(names, "its process ended", ended=True))
        for worker in came:
            self._event("worker_joined", worker=worker.worker, node=node.node, pool=node.pool)
        if came:
            self._ledger.add(node.node, node.pool, came)
            added = AddWorkers(node.node, node.pool, tuple(came))
            self._actor.tell(self._dispatcher, added)

    def leave(self, message: NodeDown) -> None:
        """A node is gone."""
        had_notice = message.node in self._roster.leaving
        node = self._roster.leave(message.node)
        if node is None:
            return
        self._backoff.left(message.node, self._now())
        self._event("node_lost", node=node.node, pool=node.pool, reason=message.reason)
        self.preemptions += not had_notice
        names = tuple(worker.worker for worker in node.workers)
        self._remove(RemoveWorkers(names, message.reason, message.announced))

    def accept_notice(self, message: NodeLeaving) -> bool:
        """A node will be taken, or is not taken after all; False if it is not there."""
        if message.node not in self._roster.nodes:
            return False
        if message.cancelled:
            self._roster.leaving.discard(message.node)
            self._event("notice_withdrawn", node=message.node, source=message.source)
        elif message.node not in self._roster.leaving:
            self._roster.leaving.add(message.node)
            self.preemptions += 1
            self._event("notice", node=message.node, source=message.source, lead_s=message.lead_s)
        return True

    def inform(self, nodes: Sequence[JoinNode], news: Sequence[Message]) -> None:
        """Tell nodes what they need; again and again, as nothing changes by it."""
        for node in nodes:
            for message in news:
                try_tell(self._actor, node.scheduler, message)

    def _remove(self, message: RemoveWorkers) -> None:
        self._ledger.remove(message.workers)
        self._actor.tell(self._dispatcher, message)

    async def _admit_later(self, name: str, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        self._actor.tell(self._coordinator, AdmitNode(name))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
