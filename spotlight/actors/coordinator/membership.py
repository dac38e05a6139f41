"""The nodes of a running job as they come and go: who is admitted, and who is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spotlight.actors.coordinator.ledger import Ledger
from spotlight.actors.coordinator.request_queue import RequestQueue
from spotlight.actors.coordinator.roster import Roster
from spotlight.actors.protocol import (
    AdmitNode,
    JoinNode,
    NodeDown,
    NodeLeaving,
)
from spotlight.actors.runtime import Actor, ActorRef
from spotlight.policies.preemption import JoinBackoff
from spotlight.run_events import (
    NodeJoined,
    NodeLost,
    NodeMustWait,
    NoticeReceived,
    NoticeWithdrawn,
    RunEvent,
    WorkerJoined,
)
from spotlight.timings import RejoinTimings
from spotlight.transport.tensors import ArtifactStore


class NodeMembership:
    """See the module's docstring.

    Args:
        actor: the job runner, which tells on its behalf.
        coordinator: told when a node that had to wait may join.
        requests, ledger: are told of every worker.
        store: into which nodes write, each with a token of its own.
        event: writes an event to the run folder.
    """

    def __init__(
        self,
        actor: Actor,
        roster: Roster,
        *,
        coordinator: ActorRef,
        requests: RequestQueue,
        ledger: Ledger,
        store: ArtifactStore,
        event: Callable[[RunEvent], None],
        timings: RejoinTimings,
    ) -> None:
        self._actor = actor
        self._roster = roster
        self._coordinator = coordinator
        self._requests = requests
        self._ledger = ledger
        self._store = store
        self._schedulers: dict[str, ActorRef] = {}
        """Of all nodes that ever joined; one that was out of reach comes back with the same."""
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
            self._event(NodeMustWait(node=node.node, seconds=round(wait_s, 1)))
            self._actor.run_task(self._admit_later(node.node, wait_s))
            return False
        names = tuple(worker.worker for worker in node.workers)
        self._event(NodeJoined(node=node.node, pool=node.pool, workers=names))
        return True

    def join(self, node: JoinNode) -> None:
        """A node is there, or its workers have changed."""
        if self._schedulers.get(node.node) != node.scheduler:
            self._store.revoke(node.node)  # another process had that token
        self._schedulers[node.node] = node.scheduler
        came, went = self._roster.join(node)
        names = tuple(worker.worker for worker in went)
        if names:
            self._ledger.remove(names)
            self._requests.remove_workers(names, "its process ended", ended=True)
        for worker in came:
            self._event(WorkerJoined(worker=worker.worker, node=node.node, pool=node.pool))
        if came:
            self._ledger.add(node.node, node.pool, came)
            self._requests.add_workers(node.node, node.pool, came)

    def leave(self, message: NodeDown) -> None:
        """A node is gone."""
        if message.announced:
            self._store.revoke(message.node)
        had_notice = message.node in self._roster.leaving
        node = self._roster.leave(message.node)
        if node is None:
            return
        self._backoff.left(message.node, self._now())
        self._event(NodeLost(node=node.node, pool=node.pool, reason=message.reason))
        self.preemptions += not had_notice
        names = tuple(worker.worker for worker in node.workers)
        self._ledger.remove(names)
        self._requests.remove_workers(names, message.reason, announced=message.announced)

    def accept_notice(self, message: NodeLeaving) -> bool:
        """A node will be taken, or is not taken after all; False if it is not there."""
        if message.node not in self._roster.nodes:
            return False
        if message.cancelled:
            self._roster.leaving.discard(message.node)
            self._event(NoticeWithdrawn(node=message.node, source=message.source))
        elif message.node not in self._roster.leaving:
            self._roster.leaving.add(message.node)
            self.preemptions += 1
            notice = NoticeReceived(node=message.node, source=message.source, lead_s=message.lead_s)
            self._event(notice)
        self._requests.set_leaving(message.workers, leaving=not message.cancelled)
        return True

    async def _admit_later(self, name: str, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        self._actor.tell(self._coordinator, AdmitNode(name))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
