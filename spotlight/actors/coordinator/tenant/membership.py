"""The nodes of a running job as they come and go: what the table of the fleet says of them is
carried out here, in its order.
"""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.coordinator.fleet import Event, TenantFleet, workers_of
from spotlight.actors.coordinator.tenant.request_queue import RequestQueue
from spotlight.actors.protocol import NodeReport, WorkerReport, WorkerStatus
from spotlight.policies.dispatch.table import RequestTable
from spotlight.policies.fleet import fleet_events as fleet
from spotlight.policies.fleet import fleet_instructions as step
from spotlight.record.run_events import RunEvent, WorkerStateBegan
from spotlight.transport.tensors import ArtifactStore


class NodeMembership:
    """See the module's docstring.

    Args:
        nodes: the fleet, as its tenant asks of it.
        requests: is told of every worker.
        table: of the requests; it knows who is in which group, and how long workers scored.
        store: into which nodes write, each with a token of its own.
        event: writes an event to the run folder.
    """

    def __init__(
        self,
        nodes: TenantFleet,
        *,
        requests: RequestQueue,
        table: RequestTable,
        store: ArtifactStore,
        event: Callable[[RunEvent], None],
    ) -> None:
        self._fleet = nodes
        self._tenant = nodes.row
        self._requests = requests
        self._table = table
        self._store = store
        self._event = event

    def take_in(self, report: NodeReport) -> step.NodeHeard | None:
        """A node is there; None if it may not join now."""
        tenant = self._tenant.tenant
        heard = self._carry_out(fleet.Heard(tenant, report))
        if heard is None:
            return None
        return self._carry_out(fleet.HeardOfNotice(tenant, heard.node, heard.has_news))

    def lose(self, name: str, reason: str, *, announced: bool) -> None:
        """A node is gone; `announced`: it had notice, and left."""
        self._carry_out(fleet.HeardOfLoss(self._tenant.tenant, name, reason, announced))

    def note(self, report: WorkerReport) -> None:
        """What a worker does from now on, and whether it can serve at all."""
        self._carry_out(fleet.WorkerSaid(self._tenant.tenant, report))

    def bar(self, workers: frozenset[str]) -> None:
        """Only these, who train, get no requests."""
        self._carry_out(fleet.Barred(self._tenant.tenant, workers))
        self._requests.bar(workers)

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """What every worker does, by name, and who leads its group."""
        found = []
        for name, row in sorted(self._tenant.workers.items()):
            leader, members = self._table.groups.of(name)
            leader = leader if members > 1 else ""
            its = name, row.node, row.pool, row.state, row.detail
            found.append(WorkerStatus(*its, leader, members))
        return tuple(found)

    def _carry_out(self, event: Event) -> step.NodeHeard | None:
        heard = None
        for each in self._fleet.handle(event):
            match each:
                case step.RevokeToken(node):
                    self._store.revoke(node)
                case step.AddWorkers(node, epochs):
                    report = self._tenant.nodes[node]
                    came = workers_of(report, epochs)
                    self._requests.add_workers(node, report.pool, came)
                case step.RemoveWorkers(workers, reason, announced, ended):
                    self._requests.remove_workers(workers, reason, announced=announced, ended=ended)
                case step.SetLeaving(workers, leaving):
                    self._requests.set_leaving(workers, leaving=leaving)
                case step.StateBegan():
                    self._event(self._began(each))
                case step.RecordEvent(happened):
                    self._event(happened)
                case step.NodeHeard():
                    heard = each
        return heard

    def _began(self, state: step.StateBegan) -> WorkerStateBegan:
        return WorkerStateBegan(
            worker=state.worker,
            node=state.node,
            pool=state.pool,
            state=state.state,
            scoring_s=round(self._table.counters.pop_scoring_s(state.worker), 4),
        )
