"""GenEval (arXiv 2310.11513) as a reward, served from an environment of its own, with torch and
transformers:

    cd examples/rewards
    spotlight serve-reward geneval:GenEval --options \
      '{"detector": "/models/mask2former-swin-small-coco-instance", "clip": "/models/clip-vit-l"}'

The prompts of the job are GenEval's `evaluation_metadata.jsonl`. The reward is the soft score of
Spotlight's `compositional`, over the objects that the metadata name: others may be in a photo.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from spotlight.assets.geneval import asked_of
from spotlight.errors import ScoringError
from spotlight.rewards.compositional import DetectedObject, soft_score
from spotlight.types import Prompt

THRESHOLD = 0.3
"""Least confidence in an object, as GenEval's."""
COUNTING_THRESHOLD = 0.9
"""The same where objects are counted."""


class Detector(Protocol):
    """What finds objects of named classes, and their colours."""

    def detect(
        self, image: np.ndarray, classes: Collection[str], threshold: float
    ) -> list[DetectedObject]:
        """Objects of these classes in an image uint8 [H, W, 3] RGB, with this confidence at least;
        a class that it does not know is a `ValueError`.
        """
        ...


class GenEvalScorer:
    """Scores images by what a detector finds in them."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """Rewards in [0, 1]; raises `ScoringError` for a prompt without GenEval's metadata."""
        return [self._score(image, prompt) for image, prompt in zip(images, prompts, strict=True)]

    def _score(self, image: np.ndarray, prompt: Prompt) -> float:
        try:
            asked = asked_of(prompt)
            classes = {one.name for one in asked.include} | {one.name for one in asked.exclude}
            threshold = COUNTING_THRESHOLD if asked.tag == "counting" else THRESHOLD
            return soft_score(asked, self._detector.detect(image, classes, threshold))
        except ValueError as error:
            raise ScoringError(f"prompt {prompt.text!r}: {error}") from error


class GenEval(GenEvalScorer):
    """With GenEval's kinds of models: Mask2Former finds objects, CLIP names their colours."""

    def __init__(self, detector: str, clip: str, device: str | None = None) -> None:
        """`detector` and `clip` are folders in the layout of transformers, or names at the model
        hub. `device` is one of torch; by default the accelerator, and the CPU where there is none.
        """
        from geneval_detector import Mask2FormerDetector

        super().__init__(Mask2FormerDetector(detector, clip, device))
