"""What the nodes of a job are told: which job there is, which weights to hold and from where, and
what work waits. It is told again and again, as any message may be lost and nothing changes by it.
"""

from __future__ import annotations

import asyncio
import math

from spotlight.actors.coordinator.backlog_shares import BacklogShares
from spotlight.actors.coordinator.job_phase import JobPhase
from spotlight.actors.coordinator.job_progress import JobProgress
from spotlight.actors.coordinator.publications import Publications
from spotlight.actors.coordinator.roster import Roster
from spotlight.actors.coordinator.trainer_team import TrainerTeam
from spotlight.actors.protocol import (
    EndJob,
    JoinNode,
    Membership,
    PrepareJob,
    WeightsCopied,
    WeightsMissed,
)
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor, Message
from spotlight.jobs import JobSpec
from spotlight.transport.tensors import ArtifactStore


class NodeBriefing:
    """See the module's docstring. Once the job is over it tells nothing more.

    Args:
        actor: the job runner, which tells on its behalf.
        dispatcher: where group leaders pull.
        term: of the job runner.
        store: the run folder's, into which nodes write.
        shares: what nodes are told of the work that waits.
    """

    def __init__(
        self,
        actor: Actor,
        dispatcher: Actor,
        job: JobSpec,
        job_id: str,
        term: int,
        *,
        roster: Roster,
        store: ArtifactStore,
        publications: Publications,
        shares: BacklogShares,
        team: TrainerTeam,
        phase: JobPhase,
        progress: JobProgress,
    ) -> None:
        self._actor = actor
        self._dispatcher = dispatcher
        self._job = job
        self._job_id = job_id
        self._term = term
        self._roster = roster
        self._store = store
        self._publications = publications
        self._shares = shares
        self._team = team
        self._phase = phase
        self._progress = progress

    def repeat(self, *, everything: bool) -> None:
        """Tell all nodes what is new, or everything, as what was told may be lost."""
        if everything:
            self.brief(*self._roster.nodes.values())
        self._spread_weights()
        self.share_backlog(again=everything)

    def brief(self, *nodes: JoinNode) -> None:
        """Tell nodes which job and which weights there are, and who trains."""
        if self._phase.over:
            return
        for node in nodes:
            sink = self._store.writable_by(node.node)
            membership = Membership(self._actor.ref, self._dispatcher.ref, sink)
            self._tell(node, PrepareJob(self._job_id, self._job, membership))
            self._team.dismiss_others(node)
        self._spread_weights(*nodes)

    def node_changed(self, name: str) -> None:
        """A node is gone, or will be, or stays after all: others may pull weights elsewhere."""
        self._publications.node_changed(name)
        self._spread_weights()

    def weights_copied(self, message: WeightsCopied) -> None:
        """A node holds a version: others pull it from there."""
        if self._publications.copied(message):
            self._spread_weights()

    def weights_missed(self, message: WeightsMissed) -> None:
        """A node could not get a version: it is sent elsewhere, or there again a little later."""
        self._publications.missed(message, self._now())
        self._spread_weights()

    def weights_published(self) -> None:
        """Tell all nodes where they pull a new version from."""
        self._spread_weights(*self._roster.nodes.values())

    def share_backlog(self, *, again: bool = False) -> None:
        """Tell nodes what their groups should be good for, if it changed much, or `again`."""
        if self._phase.over:
            return
        # Previews count only if they are there when training ends.
        left_s = self._progress.window.predict() - self._phase.seconds
        timed = self._phase.name == "train" and self._job.exploration.budget == "window"
        hurry = timed and 0 < left_s < math.inf
        due = self._shares.due(self._team.names, left_s if hurry else None, again=again)
        for node, demand in due:
            self._tell(node, demand)

    def end_job(self) -> None:
        """Tell all nodes that the job is over."""
        for node in self._roster.nodes.values():
            self._tell(node, EndJob(self._job_id, self._term))

    def _spread_weights(self, *again: JoinNode) -> None:
        """Tell nodes where they pull weights from, if that is new, or `again`."""
        if self._phase.over:
            return
        names = [node.node for node in again]
        for node, message in self._publications.directions(self._job_id, self._now(), names):
            self._tell(node, message)

    def _tell(self, node: JoinNode, message: Message) -> None:
        try_tell(self._actor, node.scheduler, message)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
