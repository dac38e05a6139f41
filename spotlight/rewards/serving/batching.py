"""Collects images that come at about the same time, and has a scorer score them together.

The scorer runs in one thread. When it becomes free, the waiting images of one size are its next
batch, up to a limit: a single image never waits for others, and a burst is scored together.

Invariant: every image that is accepted gets exactly one outcome, unless whoever sent it has gone.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from spotlight.errors import ScoringError, SpotlightError
from spotlight.rewards.base import Scorer
from spotlight.text import error_text, plain
from spotlight.types import Prompt


class Overloaded(SpotlightError):
    """No more images are accepted now."""


class Outcome(NamedTuple):
    """What became of one image."""

    reward: float | None
    reason: str = ""
    """Why there is no reward."""


@dataclass(frozen=True, eq=False)
class _Item:
    image: np.ndarray
    prompt: Prompt
    outcome: Future[Outcome] = field(default_factory=Future)


class Batcher:
    """Owns the scorer's thread, which ends with the process or with `close`."""

    def __init__(self, scorer: Scorer, *, largest_batch: int, most_waiting: int) -> None:
        self._scorer = scorer
        self._largest_batch = largest_batch
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._closed = False
        self.scoring = 0
        """Images that the scorer has now."""
        self.scored = 0
        """Images that have a reward."""
        self.failed = 0
        """Images that have none."""
        # A daemon: a scorer that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="scorer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Images that the scorer does not have yet, and that somebody waits for."""
        with self._changed:
            self._forget_cancelled()
            return len(self._waiting)

    def submit(
        self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]
    ) -> list[Future[Outcome]]:
        """Have images uint8 [H, W, 3] RGB scored; one that is cancelled in time is left out.

        Raises `Overloaded`, and then accepts none of them.
        """
        items = [_Item(image, prompt) for image, prompt in zip(images, prompts, strict=True)]
        with self._changed:
            if self._closed:
                raise Overloaded("this server is ending")
            self._forget_cancelled()
            if len(self._waiting) + len(items) > self._most_waiting:
                raise Overloaded(
                    f"{len(self._waiting)} images are already waiting; try again later"
                )
            self._waiting.extend(items)
            self._changed.notify()
        return [item.outcome for item in items]

    def close(self) -> None:
        """Let the thread end after the batch that it has; what waits is cancelled."""
        with self._changed:
            self._closed = True
            for item in self._waiting:
                item.outcome.cancel()
            self._waiting.clear()
            self._changed.notify()

    def _run(self) -> None:
        while batch := self._next_batch():
            for item, outcome in zip(batch, self._score(batch), strict=True):
                if outcome.reward is None:
                    self.failed += 1
                else:
                    self.scored += 1
                item.outcome.set_result(outcome)
            self.scoring = 0

    def _next_batch(self) -> list[_Item]:
        """Waits for images; empty once closed."""
        with self._changed:
            while not self._closed:
                batch = self._take()
                if batch:
                    self.scoring = len(batch)
                    return batch
                self._changed.wait()
        return []

    def _forget_cancelled(self) -> None:
        self._waiting = deque(item for item in self._waiting if not item.outcome.cancelled())

    def _take(self) -> list[_Item]:
        """The first that waits, and others of its size behind it."""
        batch: list[_Item] = []
        left: deque[_Item] = deque()
        for item in self._waiting:
            fits = not batch or item.image.shape == batch[0].image.shape
            if not fits or len(batch) == self._largest_batch:
                left.append(item)
            elif item.outcome.set_running_or_notify_cancel():
                batch.append(item)
        self._waiting = left
        return batch

    def _score(self, batch: Sequence[_Item]) -> list[Outcome]:
        """One outcome per item. When a batch fails, its images are scored one by one, so that one
        of them does not spoil the others.
        """
        problem = ""
        try:
            images = np.stack([item.image for item in batch])
            rewards = list(self._scorer.score(images, [item.prompt for item in batch]))
            if len(rewards) == len(batch):
                return [_outcome(reward) for reward in rewards]
            problem = f"the scorer gave {len(rewards)} rewards for {len(batch)} images"
        except ScoringError as error:
            problem = plain(error)
        except (Exception, SystemExit) as error:  # of foreign code: it costs its images
            problem = error_text(error)
        if len(batch) == 1:
            return [Outcome(None, problem)]
        return [outcome for item in batch for outcome in self._score([item])]


def _outcome(reward: Any) -> Outcome:
    """What a scorer gave for one image, if it is a finite number."""
    value = float(reward)
    return Outcome(value) if math.isfinite(value) else Outcome(None, f"the scorer gave {value}")
