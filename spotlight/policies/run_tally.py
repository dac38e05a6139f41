"""How often something went wrong in a run, counted from its events.

The events are in the run folder, so a coordinator that comes back counts on. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spotlight.policies.departure import SHARING
from spotlight.record.run_events import (
    LateResults,
    LeasesExpired,
    NodeLost,
    NoticeReceived,
    NoticeWithdrawn,
    RequestQuarantined,
    RunEvent,
    WorkerLost,
)

COUNTED: tuple[type[RunEvent], ...] = (
    LateResults,
    LeasesExpired,
    NodeLost,
    NoticeReceived,
    NoticeWithdrawn,
    RequestQuarantined,
    WorkerLost,
)
"""The events that a tally is made of."""


@dataclass
class RunTally:
    """See the module's docstring."""

    reissued: int = 0
    """Requests that wait again because their worker was lost or let its lease expire."""
    late_results: int = 0
    """Results that came without a valid lease, and did not count."""
    preemptions: int = 0
    """Nodes that had notice, or were lost without; not those that another job got."""
    quarantined: list[str] = field(default_factory=list)
    """Ids of requests that were given up because every node that took them was lost."""
    _with_notice: set[str] = field(default_factory=set)
    """Nodes whose loss is counted already; a coordinator that comes back hears of their notice
    again."""

    def note(self, event: RunEvent) -> None:
        """Something happened; most events change nothing."""
        match event:
            case WorkerLost():
                self.reissued += sum(event.requests_reissued.values())
            case LeasesExpired():
                self.reissued += event.items
            case LateResults():
                self.late_results += 1
            case RequestQuarantined():
                self.quarantined.append(event.request)
            case NoticeReceived():
                is_new = event.node not in self._with_notice
                self.preemptions += is_new and event.source != SHARING
                self._with_notice.add(event.node)
            case NoticeWithdrawn():
                self._with_notice.discard(event.node)
            case NodeLost():
                self.preemptions += event.node not in self._with_notice
                self._with_notice.discard(event.node)
