"""What a member scores with: built scorers, in the scorer's thread, and nothing but rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from spotlight.actors.worker.engine import Engine, Images, Scorer
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Scored:
    """What scoring a batch gave."""

    rewards: tuple[float, ...]
    """In [0, 1], in the order of the requests."""
    seconds: float


class Scoring:
    """Owns the scorers of a worker; they stay built between jobs. Whatever one raises, or answers
    that is no reward, is a `ScoringError`.
    """

    def __init__(self, context: WorkerContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._scorers: dict[RewardSpec, Scorer] = {}
        """Touched in the scorer's thread only."""

    async def prepare(self, reward: RewardSpec) -> None:
        """Build the scorer of a job. One that cannot be built costs every batch an attempt, not the
        worker: it may be there for the next one.
        """
        try:
            await self._context.on_scorer(lambda: self._scorer(reward))
        except Exception as error:
            log.error("scorer_not_built", reason=f"{type(error).__name__}: {error}")

    async def score(
        self, reward: RewardSpec | None, images: Images, prompts: Sequence[str]
    ) -> Scored:
        """One reward per image; zeros that nobody reads where nothing is scored. Raises
        `ScoringError`.
        """
        if reward is None:
            return Scored((0.0,) * len(prompts), 0.0)
        try:
            return await self._context.on_scorer(lambda: self._score(reward, images, prompts))
        except ScoringError:
            raise
        except Exception as error:  # whatever a scorer raises costs an attempt, not the worker
            raise ScoringError(f"{type(error).__name__}: {error}") from error

    def _scorer(self, reward: RewardSpec) -> Scorer:
        if reward not in self._scorers:
            self._scorers[reward] = self._engine.build_scorer(reward)
        return self._scorers[reward]

    def _score(self, reward: RewardSpec, images: Images, prompts: Sequence[str]) -> Scored:
        scorer = self._scorer(reward)
        began = self._context.seconds()
        rewards = scorer.score(images, prompts)
        seconds = self._context.seconds() - began
        if len(rewards) != len(prompts) or not all(0.0 <= each <= 1.0 for each in rewards):
            raise ScoringError(
                f"the scorer gave {rewards} for {len(prompts)} images; rewards must be in [0, 1]"
            )
        return Scored(tuple(float(each) for each in rewards), seconds)
