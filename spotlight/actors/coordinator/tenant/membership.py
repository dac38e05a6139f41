"""The nodes of a running job as they come and go: who is admitted, and who is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spotlight.actors.coordinator.tenant.ledger import Ledger
from spotlight.actors.coordinator.tenant.request_queue import RequestQueue
from spotlight.actors.coordinator.tenant.roster import Roster
from spotlight.actors.protocol import NodeReport
from spotlight.actors.runtime import ActorRef
from spotlight.policies.preemption import JoinBackoff
from spotlight.record.run_events import (
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
        roster: of the job's nodes, which this alone changes.
        requests, ledger: are told of every worker.
        store: into which nodes write, each with a token of its own.
        event: writes an event to the run folder.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        requests: RequestQueue,
        ledger: Ledger,
        store: ArtifactStore,
        event: Callable[[RunEvent], None],
        timings: RejoinTimings,
    ) -> None:
        self._roster = roster
        self._requests = requests
        self._ledger = ledger
        self._store = store
        self._schedulers: dict[str, ActorRef] = {}
        """Of all nodes that ever joined; one that was out of reach comes back with the same."""
        self._event = event
        self._backoff = JoinBackoff(timings)
        self._must_wait: set[str] = set()
        """Nodes that come and go too often to join now."""

    def may_join(self, node: NodeReport) -> bool:
        """Whether a node may join now; one that keeps coming and going must wait."""
        if node.node in self._roster.nodes:
            return True
        wait_s = self._backoff.wait_s(node.node, self._now())
        if wait_s > 0 and node.pool == "spot":
            if node.node not in self._must_wait:
                self._must_wait.add(node.node)
                self._event(NodeMustWait(node=node.node, seconds=round(wait_s, 1)))
            return False
        self._must_wait.discard(node.node)
        names = tuple(worker.worker for worker in node.workers)
        self._event(NodeJoined(node=node.node, pool=node.pool, workers=names))
        return True

    def join(self, node: NodeReport) -> bool:
        """A node is there; True if anything of it has changed that matters to the job."""
        known = self._roster.nodes.get(node.node)
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
        has_news = bool(came or went or known is None or known.scheduler != node.scheduler)
        return self._note_notice(node, has_news) or has_news

    def _note_notice(self, node: NodeReport, has_news: bool) -> bool:
        """Whether a node will be taken; True if that is new."""
        leaving = self._roster.leaving
        if node.notice is None and node.node in leaving:
            leaving.discard(node.node)
            self._event(NoticeWithdrawn(node=node.node))
        elif node.notice is not None and node.node not in leaving:
            leaving.add(node.node)
            source, lead_s = node.notice.source, node.notice.lead_s
            self._event(NoticeReceived(node=node.node, source=source, lead_s=lead_s))
        elif node.notice is None or not has_news:
            return False
        names = tuple(worker.worker for worker in node.workers)
        self._requests.set_leaving(names, leaving=node.notice is not None)
        return True

    def leave(self, name: str, reason: str, *, announced: bool) -> None:
        """A node is gone; `announced`: it had notice, and left."""
        if announced:
            self._store.revoke(name)
        node = self._roster.leave(name)
        if node is None:
            return
        self._backoff.left(name, self._now())
        self._event(NodeLost(node=name, pool=node.pool, reason=reason))
        names = tuple(worker.worker for worker in node.workers)
        self._ledger.remove(names)
        self._requests.remove_workers(names, reason, announced=announced)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
