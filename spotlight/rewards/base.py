"""What a scorer is, and how the one that a job names is built.

A scorer never turns a failure into a reward: it raises `ScoringError`, and the job decides what
becomes of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from spotlight.jobs import RewardSpec


class Scorer(Protocol):
    """Scores images against the prompts they were made for."""

    def score(self, images: np.ndarray, prompts: Sequence[str]) -> list[float]:
        """Rewards in [0, 1] of images uint8 [B, H, W, 3] RGB, one per image.

        A reward depends on its image and prompt alone, not on the others of the batch. Raises
        `ScoringError`.
        """
        ...


def build_scorer(spec: RewardSpec) -> Scorer:
    """The scorer of a job; raises `MissingDependency` when its packages are not installed."""
    # Imported here so that a worker that never scores needs no scorer's packages.
    from spotlight.rewards.ocr import OcrScorer
    from spotlight.rewards.recognition import RapidRecognizer

    return OcrScorer(RapidRecognizer())
