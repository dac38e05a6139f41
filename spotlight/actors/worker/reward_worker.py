"""A reward worker: scores denoised batches in its own thread, while others still denoise."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import structlog

from spotlight.actors.protocol import Scored, ScoreFailed, ScoreGrant
from spotlight.actors.worker.score_worker import ScoreWorker, ScoringJob
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec
from spotlight.rewards.base import Scorer, build_scorer
from spotlight.transport.tensors import fetch
from spotlight.transport.tensors.bundles import unpack

log = structlog.get_logger(__name__)


class RewardWorker(ScoreWorker):
    """See the module's docstring; scorers stay built between jobs."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._scorers: dict[RewardSpec, Scorer] = {}

    async def _prepare(self, reward: RewardSpec) -> None:
        try:
            await self._scorer(reward)
        except Exception as error:  # it will cost every batch an attempt here, not the worker
            log.error("scorer_not_built", reason=f"{type(error).__name__}: {error}")

    async def _scorer(self, reward: RewardSpec) -> Scorer:
        if reward not in self._scorers:
            self._scorers[reward] = await self._context.on_scorer(lambda: build_scorer(reward))
        return self._scorers[reward]

    async def _score(self, job: ScoringJob, grant: ScoreGrant) -> Scored | ScoreFailed:
        name, epoch = self._context.name, self._context.epoch
        try:
            scorer = await self._scorer(job.reward)
            images = unpack(await fetch(grant.bundle))["images"].numpy()[list(grant.rows)]
            with self._context.busy("score", f"{len(grant.rows)} images"):
                rewards, seconds = await self._context.on_scorer(
                    lambda: _timed(scorer, images, grant.prompts)
                )
            _check(rewards, len(grant.rows))
        except Exception as error:  # whatever a scorer raises costs an attempt, not the worker
            return ScoreFailed(name, epoch, grant.lease, f"{type(error).__name__}: {error}")
        return Scored(name, epoch, grant.lease, tuple(rewards), seconds)


def _timed(
    scorer: Scorer, images: np.ndarray, prompts: Sequence[str]
) -> tuple[Sequence[float], float]:
    """In the scorer's thread: rewards, and how long they took."""
    began = time.perf_counter()
    return scorer.score(images, prompts), time.perf_counter() - began


def _check(rewards: Sequence[float], wanted: int) -> None:
    """A scorer that answers nonsense has failed."""
    if len(rewards) != wanted or not all(0.0 <= reward <= 1.0 for reward in rewards):
        raise ScoringError(
            f"the scorer gave {rewards} for {wanted} images; rewards must be in [0, 1]"
        )
