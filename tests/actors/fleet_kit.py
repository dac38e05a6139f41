"""The nodes of one job, as the table of the fleet has them."""

from __future__ import annotations

from spotlight.actors.coordinator.fleet import NodeTask, Roster
from spotlight.actors.protocol.up import NodeReport
from spotlight.policies.fleet.fleet_events import (
    Barred,
    Heard,
    HeardOfLoss,
    HeardOfNotice,
    TenantBegan,
    Terms,
)
from spotlight.policies.fleet.table import FleetTable


class JobNodes:
    """A table with one tenant, which hears of nodes."""

    def __init__(self) -> None:
        self._table: FleetTable[NodeReport, NodeTask] = FleetTable("coordinator")
        self._table.handle(TenantBegan("job", Terms()), 0.0)
        self.tenant: Roster = self._table.tenants["job"]

    def hear(self, report: NodeReport) -> None:
        """A node says this."""
        self._table.handle(Heard("job", report), 0.0)
        self._table.handle(HeardOfNotice("job", report.node, has_news=True), 0.0)

    def lose(self, name: str) -> None:
        """A node is gone."""
        self._table.handle(HeardOfLoss("job", name, "it is gone", announced=False), 0.0)

    def bar(self, *workers: str) -> None:
        """These train."""
        self._table.handle(Barred("job", frozenset(workers)), 0.0)
