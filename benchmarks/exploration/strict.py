"""A reward of 0 or 1: whether an image shows all that its prompt asks for, as GenEval counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spotlight.rewards.compositional import CompositionalScorer
from spotlight.rewards.shapes import ShapeDetector
from spotlight.types import Prompt


class StrictShapes:
    """1 where the soft score of the compositional reward is whole, and 0 elsewhere."""

    def __init__(self) -> None:
        self._soft = CompositionalScorer(ShapeDetector())

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """See `Scorer`. Raises `ScoringError`."""
        return [float(score == 1.0) for score in self._soft.score(images, prompts)]
