"""The reward worker of a simulated cluster."""

from __future__ import annotations

import asyncio

from spotlight.actors.protocol import Scored, ScoreFailed, ScoreGrant
from spotlight.actors.worker.score_worker import ScoreWorker, ScoringJob
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import ScoringError, TransferFailed
from spotlight.jobs import RewardSpec
from spotlight.testing.fake_hardware import Plant, fetch_bundle


class SimulatedRewardWorker(ScoreWorker):
    """Stands where a `RewardWorker` does."""

    def __init__(self, context: WorkerContext, plant: Plant) -> None:
        super().__init__(context)
        self._plant = plant

    async def _prepare(self, reward: RewardSpec) -> None:
        """Nothing is to be built."""

    async def _score(self, job: ScoringJob, grant: ScoreGrant) -> Scored | ScoreFailed:
        name, epoch, plant = self._context.name, self._context.epoch, self._plant
        try:
            bundle = await fetch_bundle(plant, grant.bundle)
        except TransferFailed as error:
            return ScoreFailed(name, epoch, grant.lease, str(error))
        rows = [bundle.rows[index] for index in grant.rows]
        with self._context.busy("score", f"{len(rows)} images"):
            await asyncio.sleep(plant.timings.score_s)
        if tuple(row.request.prompt for row in rows) != grant.prompts:
            plant.history.violation(f"score lease {grant.lease} pairs images with other prompts")
        if any(plant.scorer_fails(row.request) for row in rows):
            plant.history.took_effect("scorer_error", worker=name, request=rows[0].request.id)
            return ScoreFailed(name, epoch, grant.lease, "the scorer is out of order")
        try:
            rewards = plant.numerics.rewards(rows)
            return Scored(name, epoch, grant.lease, rewards, plant.timings.score_s)
        except ScoringError as error:
            return ScoreFailed(name, epoch, grant.lease, str(error))
