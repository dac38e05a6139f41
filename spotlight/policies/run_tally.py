"""How often something went wrong in a run, counted from its events.

The events are in the run folder, so a coordinator that comes back counts on. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spotlight.policies.departure import SHARING
from spotlight.record.run_events import (
    BudgetNear,
    MirrorFailed,
    NodeLost,
    NodeUnpriced,
    NoticeReceived,
    NoticeWithdrawn,
    RequestGivenUp,
    ResultsIgnored,
    RunEvent,
    RunMirrored,
    WorkerLost,
    WorkTakenBack,
)

COUNTED: tuple[type[RunEvent], ...] = (
    BudgetNear,
    MirrorFailed,
    NodeLost,
    NodeUnpriced,
    NoticeReceived,
    NoticeWithdrawn,
    RequestGivenUp,
    ResultsIgnored,
    RunMirrored,
    WorkerLost,
    WorkTakenBack,
)
"""The events that a tally is made of."""


@dataclass
class RunTally:
    """See the module's docstring."""

    handed_on: int = 0
    """Requests that went to another worker, since the first was lost or did not say in time that it
    still worked on them."""
    results_ignored: int = 0
    """Results that did not count, since the work had been taken back from who delivered them."""
    preemptions: int = 0
    """Nodes that had notice, or were lost without; not those that another job got."""
    given_up: list[str] = field(default_factory=list)
    """Ids of requests that were given up because every node that took them was lost."""
    mirrored: int | None = None
    """Iterations in the checkpoint that was copied to object storage last; None if none was."""
    mirror_failures: int = 0
    """Copies to object storage that failed."""
    budgets_near: dict[str, float] = field(default_factory=dict)
    """The budgets of which people were warned, each with the limit that it had then."""
    has_unpriced: bool = False
    """Whether a node without a price worked for a job with a budget of money."""
    _with_notice: set[str] = field(default_factory=set)
    """Nodes whose loss is counted already; a coordinator that comes back hears of their notice
    again."""

    def note(self, event: RunEvent) -> None:
        """Something happened; most events change nothing."""
        match event:
            case WorkerLost():
                self.handed_on += sum(event.requests_handed_on.values())
            case WorkTakenBack():
                self.handed_on += event.items
            case ResultsIgnored():
                self.results_ignored += 1
            case RequestGivenUp():
                self.given_up.append(event.request)
            case RunMirrored():
                self.mirrored = event.iteration
            case MirrorFailed():
                self.mirror_failures += 1
            case BudgetNear():
                self.budgets_near[event.budget] = event.limit
            case NodeUnpriced():
                self.has_unpriced = True
            case NoticeReceived():
                is_new = event.node not in self._with_notice
                self.preemptions += is_new and event.source != SHARING
                self._with_notice.add(event.node)
            case NoticeWithdrawn():
                self._with_notice.discard(event.node)
            case NodeLost():
                self.preemptions += event.node not in self._with_notice
                self._with_notice.discard(event.node)
