"""Images that come together are scored together, and each has an outcome of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from spotlight.errors import ScoringError
from spotlight.rewards.serving.batching import Batcher, Outcome, Overloaded
from spotlight.types import Prompt

LIMIT_S = 20


def image(value: int, edge: int = 4) -> np.ndarray:
    return np.full((edge, edge, 3), value, np.uint8)


class Gated:
    """Scores an image by its first pixel, each batch only once it may."""

    def __init__(self, answer: Callable[[list[float]], Any] = lambda rewards: rewards) -> None:
        self.answer = answer
        self.batches: list[list[float]] = []
        self.begun = threading.Semaphore(0)
        self.may = threading.Semaphore(0)

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> Any:
        self.begun.release()
        assert self.may.acquire(timeout=LIMIT_S)
        rewards = [float(each[0, 0, 0]) for each in images]
        self.batches.append(rewards)
        return self.answer(rewards)


class Pool:
    """Makes batchers, and closes them."""

    def __init__(self) -> None:
        self.made: list[tuple[Batcher, Gated]] = []

    def __call__(self, scorer: Gated, largest_batch: int = 8, most_waiting: int = 100) -> Batcher:
        batcher = Batcher(scorer, largest_batch=largest_batch, most_waiting=most_waiting)
        self.made.append((batcher, scorer))
        return batcher


@pytest.fixture
def batcher_of() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    for batcher, scorer in pool.made:
        batcher.close()
        scorer.may.release(1000)


def submit(batcher: Batcher, *values: int, edge: int = 4) -> list[Any]:
    return batcher.submit([image(value, edge) for value in values], [Prompt("a")] * len(values))


def results(futures: Sequence[Any]) -> list[Outcome]:
    return [future.result(LIMIT_S) for future in futures]


def test_a_lone_image_is_scored_at_once(batcher_of: Pool) -> None:
    scorer = Gated()
    scorer.may.release()
    assert results(submit(batcher_of(scorer), 7)) == [Outcome(7.0)]


def test_what_comes_while_the_scorer_is_busy_is_scored_together(batcher_of: Pool) -> None:
    scorer = Gated()
    batcher = batcher_of(scorer)
    futures = submit(batcher, 1)
    assert scorer.begun.acquire(timeout=LIMIT_S)
    for value in (2, 3, 4):
        futures += submit(batcher, value)
    scorer.may.release(2)
    assert [outcome.reward for outcome in results(futures)] == [1, 2, 3, 4]
    assert scorer.batches == [[1], [2, 3, 4]]


def test_a_batch_is_no_larger_than_the_limit_and_the_order_is_kept(batcher_of: Pool) -> None:
    scorer = Gated()
    futures = submit(batcher_of(scorer, largest_batch=2), 1, 2, 3, 4, 5)
    scorer.may.release(3)
    assert [outcome.reward for outcome in results(futures)] == [1, 2, 3, 4, 5]
    assert scorer.batches == [[1, 2], [3, 4], [5]]


def test_images_of_different_sizes_are_not_put_into_one_batch(batcher_of: Pool) -> None:
    scorer = Gated()
    batcher = batcher_of(scorer)
    futures = submit(batcher, 0)
    assert scorer.begun.acquire(timeout=LIMIT_S)
    futures += submit(batcher, 1) + submit(batcher, 2, edge=6) + submit(batcher, 3)
    scorer.may.release(3)
    assert [outcome.reward for outcome in results(futures)] == [0, 1, 2, 3]
    assert scorer.batches == [[0], [1, 3], [2]]


def test_when_too_many_wait_a_request_is_refused_as_a_whole(batcher_of: Pool) -> None:
    scorer = Gated()
    batcher = batcher_of(scorer, most_waiting=2)
    futures = submit(batcher, 0)
    assert scorer.begun.acquire(timeout=LIMIT_S)
    futures += submit(batcher, 1)
    with pytest.raises(Overloaded, match="1 images are already waiting"):
        submit(batcher, 2, 3)
    scorer.may.release(2)
    results(futures)
    assert scorer.batches == [[0], [1]]


def test_an_image_that_nobody_waits_for_any_more_is_not_scored(batcher_of: Pool) -> None:
    scorer = Gated()
    batcher = batcher_of(scorer)
    first = submit(batcher, 0)
    assert scorer.begun.acquire(timeout=LIMIT_S)
    [gone], later = submit(batcher, 1), submit(batcher, 2)
    assert batcher.waiting == 2
    assert gone.cancel()
    assert batcher.waiting == 1
    scorer.may.release(2)
    results(first + later)
    assert scorer.batches == [[0], [2]]


def test_what_nobody_waits_for_makes_room_for_others(batcher_of: Pool) -> None:
    scorer = Gated()
    batcher = batcher_of(scorer, most_waiting=1)
    first = submit(batcher, 0)
    assert scorer.begun.acquire(timeout=LIMIT_S)
    [gone] = submit(batcher, 1)
    assert gone.cancel()
    later = submit(batcher, 2)
    scorer.may.release(2)
    assert results(first + later) == [Outcome(0.0), Outcome(2.0)]


def spoiled_by_2(rewards: list[float]) -> list[float]:
    if 2 in rewards:
        raise ScoringError("nothing in it")
    return rewards


def test_an_image_that_cannot_be_scored_does_not_spoil_the_others(batcher_of: Pool) -> None:
    scorer = Gated(spoiled_by_2)
    scorer.may.release(100)
    batcher = batcher_of(scorer)
    outcomes = results(submit(batcher, 1, 2, 3))
    assert outcomes == [Outcome(1.0), Outcome(None, "nothing in it"), Outcome(3.0)]
    assert (batcher.scored, batcher.failed) == (2, 1)


def broken(rewards: list[float]) -> list[float]:
    raise RuntimeError("out of memory")


def leaving(rewards: list[float]) -> list[float]:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (broken, "RuntimeError: out of memory"),
        (leaving, "SystemExit: 3"),
        (lambda rewards: [float("nan")], "the scorer gave nan"),
        (lambda rewards: [float("inf")], "the scorer gave inf"),
        (lambda rewards: [1.0, 2.0], "the scorer gave 2 rewards for 1 images"),
        (lambda rewards: None, "TypeError"),
        (lambda rewards: [None], "TypeError"),
        (lambda rewards: ["high"], "ValueError"),
    ],
)
def test_whatever_a_scorer_does_its_image_has_a_reason_and_no_reward(
    batcher_of: Pool, answer: Callable[[list[float]], Any], reason: str
) -> None:
    scorer = Gated(answer)
    scorer.may.release(100)
    [outcome] = results(submit(batcher_of(scorer), 1))
    assert outcome.reward is None
    assert reason in outcome.reason


def test_a_scorer_may_give_its_rewards_one_by_one(batcher_of: Pool) -> None:
    scorer = Gated(iter)
    scorer.may.release()
    [outcome] = batcher_of(scorer).submit([image(7)], [Prompt("a")])
    assert outcome.result(LIMIT_S) == Outcome(7.0)


def test_closing_cancels_what_waits(batcher_of: Pool) -> None:
    scorer = Gated()
    batcher = batcher_of(scorer)
    running = submit(batcher, 0)
    assert scorer.begun.acquire(timeout=LIMIT_S)
    waiting = submit(batcher, 1)
    batcher.close()
    scorer.may.release()
    assert results(running) == [Outcome(0.0)]
    assert waiting[0].cancelled()


def test_nothing_is_accepted_after_closing(batcher_of: Pool) -> None:
    batcher = batcher_of(Gated())
    batcher.close()
    with pytest.raises(Overloaded):
        submit(batcher, 1)
