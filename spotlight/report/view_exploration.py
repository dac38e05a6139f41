"""What a view keeps of a run's iterations to say whether exploration paid."""

from __future__ import annotations

from collections.abc import Mapping

from spotlight.jobs import JobSpec
from spotlight.record.run_metrics import IterationMetrics
from spotlight.report.run_view import ExplorationPart
from spotlight.report.verdict import exploration_of

_MOST = 20_000
"""Iterations; of a longer run the latest."""


class ViewExploration:
    """Fed with the iterations of a run, in order."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._iterations: dict[int, IterationMetrics] = {}
        self._changes = 0
        self._told: tuple[object, ExplorationPart] = (None, ExplorationPart())

    def iteration(self, metrics: IterationMetrics) -> None:
        """An iteration is over; one that is made again takes the place of the first."""
        self._changes += 1
        self._iterations.pop(metrics.iteration, None)
        self._iterations[metrics.iteration] = metrics
        if len(self._iterations) > _MOST:
            del self._iterations[next(iter(self._iterations))]

    def part(self, spot_seconds: Mapping[str, float], usd: float | None) -> ExplorationPart:
        """The verdict, made again only when something was added.

        Args:
            spot_seconds: of all spot workers, by state.
            usd: what their exploration cost; None if that is not known.
        """
        key = (self._changes, dict(spot_seconds), usd)
        if self._told[0] != key:
            made = exploration_of(self._job, list(self._iterations.values()), spot_seconds, usd)
            self._told = key, made
        return self._told[1]
