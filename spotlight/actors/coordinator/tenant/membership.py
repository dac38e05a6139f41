"""The nodes of a tenant as they come and go: what the table of the fleet says of them is done here,
in its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotlight.actors.coordinator.fleet import Event, workers_of
from spotlight.actors.protocol.up import NodeReport, WorkerReport
from spotlight.actors.protocol.users import WorkerStatus
from spotlight.policies.fleet import fleet_events as fleet
from spotlight.policies.fleet import fleet_instructions as step
from spotlight.record.run_events import WorkerStateBegan

if TYPE_CHECKING:
    from spotlight.actors.coordinator.tenant.tenant import Tenant


class NodeMembership:
    """See the module's docstring."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._id = tenant.roster.tenant

    def take_in(self, report: NodeReport) -> step.NodeHeard | None:
        """A node is there; None if it may not join now."""
        heard = self._carry_out(fleet.Heard(self._id, report))
        if heard is None:
            return None
        return self._carry_out(fleet.HeardOfNotice(self._id, heard.node, heard.has_news))

    def lose(self, name: str, reason: str, *, announced: bool) -> None:
        """A node is gone; `announced`: it had notice, and left."""
        self._carry_out(fleet.HeardOfLoss(self._id, name, reason, announced))

    def note(self, report: WorkerReport) -> None:
        """What a worker does from now on, and whether it can serve at all."""
        self._carry_out(fleet.WorkerSaid(self._id, report))

    def bar(self, workers: frozenset[str]) -> None:
        """Only these, who train, get no requests."""
        self._carry_out(fleet.Barred(self._id, workers))
        self._tenant.requests.bar(workers)

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """What every worker does, by name, and who leads its group."""
        found = []
        for name, row in sorted(self._tenant.roster.workers.items()):
            leader, members = self._tenant.table.groups.of(name)
            leader = leader if members > 1 else ""
            its = name, row.node, row.pool, row.state, row.detail
            found.append(WorkerStatus(*its, leader, members))
        return tuple(found)

    def _carry_out(self, event: Event) -> step.NodeHeard | None:
        tenant, heard = self._tenant, None
        for each in tenant.nodes.handle(event):
            match each:
                case step.RevokeToken(node):
                    tenant.store.revoke(node)
                    tenant.keepers.another_process(node)
                case step.AddWorkers(node, epochs):
                    report = tenant.roster.nodes[node]
                    tenant.requests.add_workers(node, report.pool, workers_of(report, epochs))
                case step.RemoveWorkers(workers, reason, announced, ended):
                    tenant.requests.remove_workers(
                        workers, reason, announced=announced, ended=ended
                    )
                case step.SetLeaving(workers, leaving):
                    tenant.requests.set_leaving(workers, leaving=leaving)
                case step.StateBegan():
                    tenant.event(self._began(each))
                case step.RecordEvent(happened):
                    tenant.event(happened)
                case step.NodeHeard():
                    heard = each
        return heard

    def _began(self, state: step.StateBegan) -> WorkerStateBegan:
        return WorkerStateBegan(
            worker=state.worker,
            node=state.node,
            pool=state.pool,
            state=state.state,
            scoring_s=round(self._tenant.table.counters.pop_scoring_s(state.worker), 4),
        )
