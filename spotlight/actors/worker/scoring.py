"""What a member scores with: built scorers, in the scorer's thread, and nothing but rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from spotlight.actors.worker.engine import Engine, Images, Scorer
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec
from spotlight.rewards.validity import checked_rewards
from spotlight.types import Prompt

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Scored:
    """What scoring a batch gave."""

    rewards: tuple[float, ...]
    """In the order of the requests."""
    seconds: float


class Scoring:
    """Owns the scorers of a worker; they stay built between jobs. Whatever one raises, or answers
    that is no reward, is a `ScoringError`.
    """

    def __init__(self, context: WorkerContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._scorers: dict[bytes, Scorer] = {}
        """Touched in the scorer's thread only."""

    async def prepare(self, reward: RewardSpec) -> None:
        """Build the scorer of a job. One that cannot be built costs every batch an attempt, not the
        worker: it may be there for the next one.
        """
        try:
            await self._context.on_scorer(lambda: self._scorer(reward))
        except Exception as error:
            log.error("scorer_not_built", reason=f"{type(error).__name__}: {error}")

    async def score(self, reward: RewardSpec, images: Images, prompts: Sequence[Prompt]) -> Scored:
        """One reward per image. Raises `ScoringError`."""
        try:
            return await self._context.on_scorer(lambda: self._score(reward, images, prompts))
        except ScoringError:
            raise
        except Exception as error:  # whatever a scorer raises costs an attempt, not the worker
            raise ScoringError(f"{type(error).__name__}: {error}") from error

    def _scorer(self, reward: RewardSpec) -> Scorer:
        key = msgspec.msgpack.encode(reward)  # its options have no hash
        if key not in self._scorers:
            self._scorers[key] = self._engine.build_scorer(reward)
        return self._scorers[key]

    def _score(self, reward: RewardSpec, images: Images, prompts: Sequence[Prompt]) -> Scored:
        scorer = self._scorer(reward)
        began = self._context.seconds()
        rewards = checked_rewards(reward, scorer.score(images, prompts), len(prompts))
        return Scored(rewards, self._context.seconds() - began)
