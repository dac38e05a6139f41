"""What nodes are told about waiting work, from which each plans its SP groups.

A node is told what its own workers hold, and its share of what nobody has yet. Nodes of one worker
have nothing to plan and are told nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import Literal

from spotlight.actors.coordinator.fleet import Roster
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.protocol.down import Demand, DemandClass
from spotlight.actors.protocol.up import NodeReport
from spotlight.policies.requests.matching import Backlog, micro_batches
from spotlight.policies.requests.table import RequestTable
from spotlight.preflight.checkpoint_facts import CheckpointInfo
from spotlight.types import RequestKind, SamplingSettings


class BacklogShares:
    """See the module's docstring.

    Args:
        degree: SP degree that the user wants, or `auto`.
        checkpoint: the job's model.
        table: what waits.
        profile: how long the steps take.
    """

    def __init__(
        self,
        degree: Literal["auto"] | int,
        job_id: str,
        checkpoint: CheckpointInfo,
        *,
        roster: Roster,
        table: RequestTable,
        profile: StepProfile,
    ) -> None:
        self._degree = degree
        self._job_id = job_id
        self._checkpoint = checkpoint
        self._roster = roster
        self._table = table
        self._profile = profile
        self._told: dict[str, Hashable] = {}
        """What matters most of the latest demand, by node."""

    def seconds_of(self, kind: RequestKind) -> float:
        """Those that all free workers need for what waits of a kind."""
        return sum(
            work.batches * work.settings.steps * (self._profile.step_s(work.settings, 1) or 0.0)
            for work in self._table.backlog()
            if work.kind == kind
        ) / max(1, self._roster.free_workers())

    def due(
        self, apart: frozenset[str], seconds_left: float | None, *, again: bool
    ) -> list[tuple[NodeReport, Demand]]:
        """Whom to tell what: all nodes if `again`, else those whose demand changed much.

        Args:
            apart: workers that train.
            seconds_left: until previews are worth nothing any more, where that is known.
        """
        step_s = cache(self._step_s)  # most nodes have as many workers as others
        demands = [
            (node, self._demand(node, shares, apart, seconds_left, step_s))
            for node, shares in self._shares()
        ]
        told, self._told = self._told, {n.node: _outline(n, demand) for n, demand in demands}
        return [
            (node, demand)
            for node, demand in demands
            if again or told.get(node.node) != self._told[node.node]
        ]

    def _shares(self) -> Iterator[tuple[NodeReport, list[tuple[Backlog, int]]]]:
        """Nodes of several workers, each with its micro-batches of every kind that it has."""
        nodes = [self._roster.nodes[name] for name in sorted(self._roster.nodes)]
        workers = sum(len(self._roster.free_workers_of(node.node)) for node in nodes)
        backlog = [(work, self._unclaimed(work)) for work in self._table.backlog()]
        before = 0
        for node in nodes:
            after = before + len(self._roster.free_workers_of(node.node))
            if len(node.workers) > 1:
                shares = [
                    (work, work.leased.get(node.node, 0) + _part(unclaimed, before, after, workers))
                    for work, unclaimed in backlog
                ]
                yield node, [(work, batches) for work, batches in shares if batches]
            before = after

    def _unclaimed(self, work: Backlog) -> int:
        """Micro-batches that nobody has, those included that the explorer has yet to submit."""
        more = self._table.unsubmitted_previews if work.kind == "preview" else 0
        return micro_batches(work.queued + more, work.settings)

    def _demand(
        self,
        node: NodeReport,
        shares: list[tuple[Backlog, int]],
        apart: frozenset[str],
        seconds_left: float | None,
        step_s: Callable[[SamplingSettings, int], dict[int, float]],
    ) -> Demand:
        names = [worker.worker for worker in node.workers]
        alone = tuple(name for name in names if name in apart)
        classes = tuple(
            DemandClass(
                work.kind,
                batches,
                work.settings.steps,
                step_s(work.settings, len(names) - len(alone)),
            )
            for work, batches in shares
        )
        # Previews alone have a deadline, and a mere guess of their pace is not held against it.
        hurry = any(one.kind == "preview" for one in classes)
        hurry = hurry and all(
            self._profile.step_s(work.settings, 1) is not None for work, _ in shares
        )
        return Demand(
            self._job_id,
            self._checkpoint.heads,
            classes,
            seconds_left if hurry else None,
            self._wished(),
            alone,
        )

    def _step_s(self, settings: SamplingSettings, workers: int) -> dict[int, float]:
        tokens = self._checkpoint.tokens(settings.height, settings.width, settings.frames)
        degrees = self._checkpoint.degrees(workers, tokens, wished=self._wished())
        return self._profile.by_degree(settings, degrees)

    def _wished(self) -> int | None:
        return self._degree if self._degree != "auto" else None


def _part(batches: int, before: int, after: int, workers: int) -> int:
    """Of the batches, dealt out evenly to `workers`, what falls to those from `before` to `after`;
    the parts add up to all of them.
    """
    return batches * after // workers - batches * before // workers if workers else 0


def _outline(node: NodeReport, demand: Demand) -> Hashable:
    """Another outline is a great change: who is there, which kinds of work wait, and as soon as
    they are less than one batch for every worker, how many.
    """
    return (
        tuple(worker.epoch for worker in node.workers),
        demand.apart,
        demand.seconds_left is None,
        tuple((one.kind, one.steps, min(one.batches, len(node.workers))) for one in demand.classes),
    )
