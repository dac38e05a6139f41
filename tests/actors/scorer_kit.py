"""A scorer for members: it keeps what it was asked, and can be held, or told what to answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from spotlight.actors.worker import torch_engine
from spotlight.types import Prompt


class FakeScorer:
    """A reward is the brightness of the image, unless another answer is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[np.ndarray, tuple[Prompt, ...]]] = []
        self.answer: Any = None
        """Given in place of rewards; an exception is raised."""
        self._free = threading.Event()
        self._free.set()

    def hold(self) -> None:
        """Score nothing until told to go on."""
        self._free.clear()

    def go_on(self) -> None:
        """See `hold`."""
        self._free.set()

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """See `Scorer.score`."""
        self.asked.append((images, tuple(prompts)))
        assert self._free.wait(60.0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if self.answer is not None else brightness(images)


def brightness(images: np.ndarray) -> list[float]:
    """The rewards of images."""
    return [float(image.mean()) / 255 for image in images]


def use_scorer(monkeypatch: pytest.MonkeyPatch) -> FakeScorer:
    """All members score with it from now on."""
    scorer = FakeScorer()
    monkeypatch.setattr(torch_engine, "build_scorer", lambda spec, permissions: scorer)
    return scorer
