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
    """The scorer of a job.

    Raises `MissingDependency` when its packages are not installed, and `JobError` when its files
    are missing or not as they should be.
    """
    # Imported here so that a worker needs no packages of scorers that it does not use.
    if spec.kind == "compositional":
        from spotlight.rewards.compositional import CompositionalScorer
        from spotlight.rewards.shape_prompts import read_shape_metadata
        from spotlight.rewards.shapes import ShapeDetector

        return CompositionalScorer(ShapeDetector(), read_shape_metadata(spec.metadata))
    from spotlight.rewards.ocr import OcrScorer
    from spotlight.rewards.recognition import RapidRecognizer

    return OcrScorer(RapidRecognizer())
