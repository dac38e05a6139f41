"""A member's scorers: they run in the scorer's thread and return nothing but rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from spotlight.actors.worker.engine import Engine, Images, Scorer
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import JobError, ScoringError, UserError
from spotlight.jobs import RewardSpec
from spotlight.rewards.validity import score_with
from spotlight.text import error_text
from spotlight.types import Prompt

ResultT = TypeVar("ResultT")
Scorers = dict[bytes, Scorer]
"""One scorer by what the job says of it."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Scored:
    """What scoring a batch gave."""

    rewards: tuple[tuple[float, ...], ...]
    """The rewards of each request, in their order."""
    seconds: float


class Scoring:
    """Owns the scorers of a worker; they stay built between jobs. Whatever one raises, or answers
    that is no reward, is a `ScoringError`.
    """

    def __init__(self, context: WorkerContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._scorers: Scorers = {}
        """Touched in the scorer's thread only; a thread that is left behind keeps its own."""
        self._turn = asyncio.Lock()

    async def prepare(self, rewards: Sequence[RewardSpec]) -> None:
        """Build the scorers of a job. One that cannot be built costs every batch an attempt, not
        the worker: it may be there for the next one.
        """
        for reward in rewards:
            try:
                await self._in_time(reward, partial(self._scorer, reward))
            except ScoringError as error:
                log.error("scorer_not_built", reason=str(error))

    async def score(
        self, rewards: Sequence[RewardSpec], images: Images, prompts: Sequence[Prompt]
    ) -> Scored:
        """Each of the rewards of each image. Raises `ScoringError`."""
        columns: list[tuple[float, ...]] = []
        seconds = 0.0
        for reward in rewards:
            work = partial(self._score, reward, images, prompts)
            column, taken = await self._in_time(reward, work)
            columns.append(column)
            seconds += taken
        rows = tuple(tuple(column[i] for column in columns) for i in range(len(prompts)))
        return Scored(rows, seconds)

    async def _in_time(self, reward: RewardSpec, work: Callable[[Scorers], ResultT]) -> ResultT:
        """In turn, in the scorer's thread; a scorer that hangs is left behind with its thread."""
        async with self._turn:
            try:
                async with asyncio.timeout(reward.limit_s):
                    return await self._context.on_scorer(partial(work, self._scorers))
            except TimeoutError as error:
                self._context.abandon_scorer()
                self._scorers = {}
                raise ScoringError(
                    f"reward `{reward.name}`: the scorer did not answer within {reward.limit_s:g}"
                    " s; fix it, or raise the reward's `limit_s`"
                ) from error

    def _scorer(self, reward: RewardSpec, scorers: Scorers) -> Scorer:
        """Raises `ScoringError` if it cannot be built."""
        key = msgspec.msgpack.encode(reward)  # its options have no hash
        if key not in scorers:
            try:
                scorers[key] = self._engine.build_scorer(reward)
            except UserError as error:
                problem = error.problem if isinstance(error, JobError) else str(error)
                raise ScoringError(f"reward `{reward.name}`: {problem}") from error
            except Exception as error:  # whatever its packages and files raise
                raise ScoringError(f"reward `{reward.name}`: {error_text(error)}") from error
        return scorers[key]

    def _score(
        self,
        reward: RewardSpec,
        images: Images,
        prompts: Sequence[Prompt],
        scorers: Scorers,
    ) -> tuple[tuple[float, ...], float]:
        """The rewards, and the seconds that they took."""
        scorer = self._scorer(reward, scorers)
        began = self._context.seconds()
        rewards = score_with(scorer, reward, images, prompts)
        return rewards, self._context.seconds() - began
