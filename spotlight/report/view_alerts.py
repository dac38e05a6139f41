"""What is wrong with a run now, by its events."""

from __future__ import annotations

from spotlight.policies import alerts
from spotlight.record.run_events import (
    BudgetNear,
    CallbackTrouble,
    ExplorationReduced,
    MirrorFailed,
    NodeUnpriced,
    RunEvent,
    RunMirrored,
    RunStarted,
    WorkerFailed,
)

_LONGEST_ERROR = 300
_MOST = 16


class Alerts:
    """Follows the events of a run; what is no longer wrong is no longer said."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], str] = {}

    def event(self, event: RunEvent) -> None:
        """The next one."""
        match event:
            case RunStarted():
                self._lines.clear()
            case CallbackTrouble(callback=name, failures=failures, error=error) if failures:
                self._lines["tracker", name] = tracker_alert(name, error)
            case BudgetNear(budget=field, said=said):
                self._lines["budget", field] = f"budget nearly spent: {said}"
            case NodeUnpriced():
                said = "`budget.usd` counts priced time only: not all nodes have a price"
                self._lines["unpriced", ""] = said
            case MirrorFailed(reason=reason):
                self._lines["mirror", ""] = f"the run is not copied: {_short(reason)}"
            case RunMirrored():
                self._lines.pop(("mirror", ""), None)
            case ExplorationReduced(share=share, tau=tau):
                self._lines["exploration", ""] = alerts.of_exploration(share, tau)
            case WorkerFailed(worker=worker, reason=reason, given_up=True):
                self._lines["worker", worker] = f"{worker} is given up: {_short(reason)}"

    def lines(self) -> tuple[str, ...]:
        """The first of them, and how many more there are."""
        lines = [line for line in self._lines.values() if line]
        more = [f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
        return (*lines[:_MOST], *more)


def tracker_alert(name: str, error: str) -> str:
    """What is said of a tracker that has failed, in the status of a job as well."""
    return f"tracker {name} failed: {_short(error)}"


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_ERROR]
