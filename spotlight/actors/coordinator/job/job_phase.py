"""In which phase a job is, since when, and how it ended."""

from __future__ import annotations

from spotlight.actors.coordinator.job.run_record import RunRecord
from spotlight.actors.protocol.users import Outcome


class JobPhase:
    """See the module's docstring. A job that has ended is in the phase `finished`.

    Args:
        run: has the clock.
    """

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self._began = 0.0
        self._lasted: dict[str, float] = {}
        """Seconds, of the last phase of each name."""
        self.name = "preparing"
        self.outcome: Outcome = ""
        self.reason = ""
        self.replaced = False
        """Another runner takes this one's place."""

    @property
    def over(self) -> bool:
        """Whether this runner has nothing more to do."""
        return bool(self.outcome) or self.replaced

    @property
    def seconds(self) -> float:
        """Since the phase began."""
        return self._run.time_s() - self._began

    def enter(self, name: str) -> None:
        """Another phase begins."""
        self._lasted[self.name] = self.seconds
        self.name = name
        self._began = self._run.time_s()

    def pop_duration(self, name: str) -> float:
        """How long the last phase of that name was; 0 if it was taken before, or there was none."""
        return self._lasted.pop(name, 0.0)
