"""The job's part of the nodes' plans: the job, where to take its checkpoint from, which weights to
hold and where to pull them, and the waiting work. Plans are repeated until the nodes' reports
agree.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.tenant.checkpoint_spread import CheckpointSpread
from spotlight.actors.protocol.artifacts import own_folders
from spotlight.actors.protocol.down import Membership
from spotlight.actors.protocol.up import NodeReport

if TYPE_CHECKING:
    from spotlight.actors.coordinator.tenant.tenant import Tenant

_DEMANDS_PER_S = 2000
"""Demands of all nodes together in a second, unless something is told again."""
_FEW_NODES = 32
"""How many nodes are few enough to be told of every change at once."""


class NodeBriefing:
    """See the module's docstring. Once the tenant is over it tells nothing more."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._fleet, self._publications = tenant.nodes, tenant.publications
        self._lent = tenant.lent
        self._checkpoints = CheckpointSpread(
            tenant.service.work.model.checkpoint,
            tenant.roster,
            tenant.timings.checkpoints,
            tenant.service.hub_files,
        )
        self._shared_at = -math.inf
        """When nodes were told of the backlog last, on the loop's clock."""
        self._sharing: asyncio.Task[None] | None = None

    def repeat(self, *, everything: bool) -> None:
        """See what is new by now; `everything`: also what must be told again and again."""
        self._spread_checkpoint()
        self._spread_weights()
        self.share_backlog(again=everything)

    def note(self, node: NodeReport, *, has_changed: bool) -> None:
        """A node reports; `has_changed`: it is there for the first time, or others of its workers,
        or it leaves.
        """
        if self._tenant.is_over:
            return
        self._tenant.keepers.note(node)
        if has_changed:
            self._node_changed(node.node)
            self._prepare(node.node)
        has_tried = self._fleet.agrees(node)
        if self._checkpoints.note(node, self._now(), has_tried=has_tried):
            self._spread_checkpoint()
        if self._note_weights(node, has_tried=has_tried) or has_changed:
            self._spread_weights(*([node.node] if has_changed else []))

    def _note_weights(self, node: NodeReport, *, has_tried: bool) -> bool:
        """What a node has and could not get; True if any of it is new."""
        news = self._publications.note_copies(node.node, node.weights)
        news |= self._lent.note_copies(node.node, node.lent)
        if not has_tried:
            return news
        missed = self._publications.note_missed(node.node, node.missed, self._now())
        for each in missed:
            self._tenant.weights_missed(node.node, each)
        missed += self._lent.note_missed(node.node, node.lent_missed, self._now())
        return news or bool(missed)

    def _node_changed(self, name: str) -> None:
        self._publications.node_changed(name)
        self._lent.node_changed(name)

    def _prepare(self, name: str) -> None:
        """A node takes part, and hears where it leaves what."""
        tenant = self._tenant
        sink = tenant.store.writable_by(name, *own_folders(name))
        keeper = tenant.keepers.of(name)
        membership = Membership(tenant.ref, tenant.dispatcher.ref, sink, keeper, tenant.images)
        self._fleet.prepare(name, tenant.service.work, membership)
        self._fleet.keep_bundles(name, tenant.keepers.keeping(name))

    def keepers_changed(self) -> None:
        """Other nodes keep samples and commits."""
        if self._tenant.is_over:
            return
        for name in self._tenant.roster.nodes:
            self._prepare(name)
        self._fleet.send()

    def keeping_changed(self, nodes: Iterable[str]) -> None:
        """These nodes need not keep all that they do, or are to take it from fewer."""
        if self._tenant.is_over:
            return
        for name in nodes:
            self._fleet.keep_bundles(name, self._tenant.keepers.keeping(name))
        self._fleet.send()

    def node_gone(self, name: str) -> None:
        """Others may pull weights elsewhere."""
        self._node_changed(name)
        self._checkpoints.gone(name)
        self._spread_checkpoint()
        self._spread_weights()

    def weights_published(self) -> None:
        """Tell nodes where they pull a new version from, or what ranks lend."""
        self._spread_weights()

    def replace_trainers(self, term: int) -> None:
        """Ranks are built, or were found again: tell those of earlier terms, which hold on to much
        memory."""
        self._fleet.replace_trainers(term)
        self._fleet.send()

    def share_backlog(self, *, again: bool = False) -> None:
        """Tell nodes what their groups should be good for, if it changed much, or `again`. What
        one node joins or takes may change what all are told, so many nodes are told the outcome of
        many changes.
        """
        nodes = len(self._tenant.roster.nodes)
        wait_s = self._shared_at + nodes / _DEMANDS_PER_S - self._now()
        if again or nodes <= _FEW_NODES or wait_s <= 0:
            self._share_backlog(again=again)
        elif self._sharing is None:
            self._sharing = self._tenant.run_task(self._share_backlog_after(wait_s))

    async def _share_backlog_after(self, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        self._sharing = None
        self._share_backlog(again=False)

    def _share_backlog(self, *, again: bool) -> None:
        if self._tenant.is_over:
            return
        tenant, self._shared_at = self._tenant, self._now()
        for node, demand in tenant.shares.due(tenant.apart, tenant.seconds_left, again=again):
            self._fleet.demand(node.node, demand)
        self._fleet.send()

    def end_job(self) -> None:
        """Tell all nodes that the job is over."""
        self._fleet.end()

    def _spread_checkpoint(self) -> None:
        """Tell nodes where they take the checkpoint from, if that is new."""
        if self._tenant.is_over:
            return
        for name, source in self._checkpoints.directions(self._now()):
            self._fleet.take_checkpoint(name, source)
        self._fleet.send()

    def _spread_weights(self, *again: str) -> None:
        """Tell nodes where they pull weights from, if that is new, or `again`."""
        if self._tenant.is_over:
            return
        self._fleet.keep(sorted(self._publications.versions))
        for name, offer in self._publications.directions(self._now(), again):
            self._fleet.hold(name, offer)
        self._fleet.keep_lent(self._lent.versions)
        for name, offer in self._lent.directions(self._now(), again):
            self._fleet.hold_lent(name, offer)
        self._fleet.send()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
