"""Exploration for an iteration: its plan, its previews, and the seeds that are chosen."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import structlog

from spotlight.actors.coordinator.backlog_shares import BacklogShares
from spotlight.actors.coordinator.explorer import Explorer, Orders
from spotlight.actors.coordinator.job_progress import JobProgress
from spotlight.actors.coordinator.request_plans import prompts_of
from spotlight.actors.coordinator.request_queue import RequestQueue
from spotlight.jobs import JobSpec
from spotlight.types import Request, Result

log = structlog.get_logger(__name__)


class ExplorationPhase:
    """See the module's docstring.

    Args:
        prompts: of the training set.
        shares: knows how many groups may preview, and what evaluations need of the time.
        explored: called with the iteration whose seeds are chosen.
    """

    def __init__(
        self,
        job: JobSpec,
        prompts: Sequence[str],
        *,
        requests: RequestQueue,
        progress: JobProgress,
        shares: BacklogShares,
        explored: Callable[[int], None],
    ) -> None:
        self._job = job
        self._prompts = prompts
        self._requests = requests
        self._progress = progress
        self._shares = shares
        self._explored = explored
        self._explorer = Explorer(job, groups=shares.groups)
        self.previews = 0
        """Scored ones, of all iterations."""

    def begin(self, iteration: int) -> None:
        """Begin to explore for an iteration."""
        progress = self._progress
        # Validation waits behind previews, so the end of the window is left to it.
        window_s = progress.window.predict() - self._shares.seconds_of("evaluation")
        window_s = max(0.0, window_s)
        progress.figures.window_s = window_s if window_s < math.inf else None
        prompts = prompts_of(self._job, iteration, self._prompts)
        version = iteration if self._job.exploration.weights == "fresh" else iteration - 1
        plan = progress.exploration.plan(iteration, version, prompts, window_s)
        progress.figures.exploration_share = plan.share
        self._follow(self._explorer.start(plan, self._now()))

    def end(self, iteration: int) -> None:
        """Choose now, or when the fixed budget is spent."""
        self._follow(self._explorer.stop(iteration, self._now()))

    def finished(self, results: Sequence[Result]) -> None:
        """Previews come in, in any order, each once."""
        self._follow(self._explorer.finished(results, self._now()))

    def given_up(self, requests: Sequence[Request], reason: str) -> None:
        """Previews that could not be denoised or scored."""
        if requests:
            log.warning("previews_given_up", count=len(requests), reason=reason)
            self._follow(self._explorer.given_up(requests, self._now()))

    def release(self) -> None:
        """The seeds that were chosen last are on record: their previews have been used up."""
        self._requests.forget("preview", self._progress.exploration.latest.iteration)

    def _follow(self, orders: Orders) -> None:
        self._requests.expect_previews(self._explorer.unsubmitted)
        self._requests.submit(orders.requests)
        for kind in orders.cancel:
            self._requests.cancel(kind)
        if orders.explored is not None:
            self._progress.exploration.accept(orders.explored)
            self.previews += orders.explored.previews
            self._explored(orders.explored.iteration)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
