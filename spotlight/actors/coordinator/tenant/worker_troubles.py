"""What is wrong with the workers of a job: what their nodes say of processes that end badly, and
what workers say themselves that cannot load the model.

Each new trouble is an event; all of them are in the status. When no reserved worker is left that
may work, nobody can train, so the job has to end.
"""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.coordinator.tenant.ledger import Ledger
from spotlight.actors.coordinator.tenant.roster import Roster
from spotlight.actors.protocol import NodeReport, WorkerTrouble
from spotlight.record.run_events import RunEvent, WorkerFailed


class WorkerTroubles:
    """See the module's docstring.

    Args:
        event: writes an event to the run folder.
        agrees: whether a node has followed its latest plan; before that it may not have heard that
            another runner has the job, and that it is to try again.
    """

    def __init__(
        self,
        roster: Roster,
        ledger: Ledger,
        event: Callable[[RunEvent], None],
        agrees: Callable[[NodeReport], bool],
    ) -> None:
        self._roster = roster
        self._ledger = ledger
        self._event = event
        self._agrees = agrees
        self._known: dict[str, WorkerTrouble] = {}

    def note(self, node: NodeReport) -> None:
        """A node reports: what is new is an event."""
        for trouble in node.troubles:
            if trouble.reason and self._known.get(trouble.worker) != trouble:
                self._known[trouble.worker] = trouble
                if trouble.tries or trouble.given_up:
                    self._record(trouble)

    def _record(self, trouble: WorkerTrouble) -> None:
        self._event(
            WorkerFailed(
                worker=trouble.worker,
                reason=trouble.reason,
                tries=trouble.tries,
                given_up=trouble.given_up,
            )
        )

    @property
    def all(self) -> tuple[WorkerTrouble, ...]:
        """Every trouble that there is now, by worker."""
        of_nodes = [trouble for node in self._roster.nodes.values() for trouble in node.troubles]
        own = [WorkerTrouble(name, reason) for name, reason in self._ledger.cannot_serve.items()]
        return tuple(sorted((*of_nodes, *own), key=lambda trouble: trouble.worker))

    def why_nobody_can_train(self, ranks: int) -> str:
        """Why no reserved worker can work; empty while one may, or others are still to come: fewer
        are there than so many ranks."""
        reserved = self._roster.reserved_nodes()
        if sum(node.size for node in reserved) < ranks or not all(map(self._agrees, reserved)):
            return ""
        own = self._ledger.cannot_serve
        found: list[str] = []
        for node in reserved:
            hopeless = {each.worker: describe(each) for each in node.troubles if each.given_up}
            for worker in (refs.worker for refs in node.workers):
                if worker in own:
                    hopeless[worker] = describe(WorkerTrouble(worker, own[worker]))
            if len(hopeless) < max(1, node.size):
                return ""
            found += hopeless.values()
        return f"no reserved worker can work: {'; '.join(found)}; fix that, then resume the run"


def describe(trouble: WorkerTrouble) -> str:
    """A trouble in words."""
    worker, reason = trouble.worker, trouble.reason
    if trouble.given_up:
        after = f" after {trouble.tries} tries" if trouble.tries else ""
        return f"{worker} is given up{after}: {reason}"
    if trouble.tries:
        return f"{worker} failed {trouble.tries} times and is started again: {reason}"
    return f"{worker}: {reason}"
