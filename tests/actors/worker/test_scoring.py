"""What a member scores with: a failure is an error, and never a reward."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from job_kit import job
from scorer_kit import FakeScorer, use_scorer

from spotlight.actors.worker import torch_engine
from spotlight.actors.worker.scoring import Scoring
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import MissingDependency, ScoringError
from spotlight.types import Prompt

REWARDS = job().rewards
IMAGES = np.stack([np.full((4, 4, 3), grey, dtype=np.uint8) for grey in (255, 0, 51)])
PROMPTS = tuple(map(Prompt, ("white", "black", "grey")))


@pytest.fixture
def context() -> Iterator[WorkerContext]:
    context = WorkerContext("w", 7, "")
    yield context
    context.close()


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> FakeScorer:
    return use_scorer(monkeypatch)


async def test_rewards_are_in_the_order_of_the_images(
    context: WorkerContext, scorer: FakeScorer
) -> None:
    scored = await Scoring(context, TorchEngine()).score(REWARDS, IMAGES, PROMPTS)
    assert scored.rewards == ((1.0,), (0.0,), (0.2,))
    assert scored.seconds > 0.0
    assert [prompts for _, prompts in scorer.asked] == [PROMPTS]


@pytest.mark.parametrize(
    "answer",
    [
        ScoringError("gone"),
        AttributeError("bug"),
        TimeoutError("slow"),
        7,
        [0.5],
        [0.5, 0.5, 2.0],
        [0.5, 0.5, -0.1],
        [0.5, 0.5, float("nan")],
    ],
    ids=repr,
)
async def test_a_failure_or_nonsense_is_never_a_reward(
    context: WorkerContext, scorer: FakeScorer, answer: object
) -> None:
    scorer.answer = answer
    with pytest.raises(ScoringError):
        await Scoring(context, TorchEngine()).score(REWARDS, IMAGES, PROMPTS)


class Builder:
    """Builds scorers, or fails."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.threads: list[str] = []
        """Those in which it was asked to."""

    def build(self, spec: object, permissions: object) -> FakeScorer:
        self.threads.append(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        return FakeScorer()


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    builder = Builder()
    monkeypatch.setattr(torch_engine, "build_scorer", builder.build)
    return builder


async def test_a_scorer_is_built_once_for_all_jobs_and_beside_everything_else(
    context: WorkerContext, builder: Builder
) -> None:
    scoring = Scoring(context, TorchEngine())
    await scoring.prepare(REWARDS)
    await scoring.prepare(REWARDS)
    await scoring.score(REWARDS, IMAGES, PROMPTS)
    (thread,) = builder.threads
    assert thread.startswith("scorer")


async def test_a_scorer_that_cannot_be_built_fails_its_batches_until_it_can(
    context: WorkerContext, builder: Builder
) -> None:
    scoring = Scoring(context, TorchEngine())
    builder.error = MissingDependency("rapidocr is not installed here")
    await scoring.prepare(REWARDS)
    with pytest.raises(ScoringError, match="rapidocr is not installed here"):
        await scoring.score(REWARDS, IMAGES, PROMPTS)
    builder.error = None
    assert (await scoring.score(REWARDS, IMAGES, PROMPTS)).rewards == ((1.0,), (0.0,), (0.2,))


# --- several rewards ---

SEVERAL = job(
    rewards=[{"name": "first"}, {"name": "second", "range": [0, 30]}, {"name": "third"}]
).rewards


async def test_every_image_has_each_of_the_rewards_in_their_order(
    context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorers = {reward.name: FakeScorer() for reward in SEVERAL}
    scorers["second"].answer = [20.0, 21.0, 22.0]
    monkeypatch.setattr(torch_engine, "build_scorer", lambda spec, permissions: scorers[spec.name])
    scored = await Scoring(context, TorchEngine()).score(SEVERAL, IMAGES, PROMPTS)
    assert scored.rewards == ((1.0, 20.0, 1.0), (0.0, 21.0, 0.0), (0.2, 22.0, 0.2))


async def test_one_scorer_that_fails_fails_the_batch_by_its_name(
    context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorers = {reward.name: FakeScorer() for reward in SEVERAL}
    scorers["second"].answer = [20.0, 21.0, 31.0]
    monkeypatch.setattr(torch_engine, "build_scorer", lambda spec, permissions: scorers[spec.name])
    with pytest.raises(ScoringError, match=r"^reward `second`: 31 is outside the range \[0, 30\]"):
        await Scoring(context, TorchEngine()).score(SEVERAL, IMAGES, PROMPTS)


async def test_no_rewards_are_given_where_none_are_asked_for(context: WorkerContext) -> None:
    assert (await Scoring(context, TorchEngine()).score((), IMAGES, PROMPTS)).rewards == ((),) * 3


# --- a scorer that hangs ---


async def test_a_scorer_that_hangs_has_failed_and_is_made_anew(
    context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[FakeScorer] = []

    def build(spec: object, permissions: object) -> FakeScorer:
        made.append(FakeScorer())
        if len(made) == 1:
            made[0].hold()
        return made[-1]

    monkeypatch.setattr(torch_engine, "build_scorer", build)
    scoring, (reward,) = Scoring(context, TorchEngine()), job(rewards=[{"limit_s": 0.05}]).rewards
    with pytest.raises(ScoringError, match="`ocr`: the scorer did not answer within"):
        await scoring.score((reward,), IMAGES, PROMPTS)
    patient = msgspec.structs.replace(reward, limit_s=60.0)
    assert (await scoring.score((patient,), IMAGES, PROMPTS)).rewards == ((1.0,), (0.0,), (0.2,))
    assert len(made) == 2
    made[0].go_on()
