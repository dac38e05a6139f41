"""The OCR reward of Flow-GRPO (arXiv 2505.05470): how much of the quoted text of the prompt the
image shows.

Target: the first text in quotes (`quoted_text`). Of both texts counts what `plain` leaves: neither
spaces nor case, and the same character whatever its code points. The distance is 0 when the target
occurs in the recognised text, otherwise Levenshtein's; reward = 1 - min(distance, n) / n for n
target characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from spotlight.errors import ScoringError
from spotlight.rewards.quotes import plain, quoted_text
from spotlight.types import Prompt


class Recognizer(Protocol):
    """Reads the text in images."""

    def recognize(self, images: np.ndarray) -> list[str]:
        """Text in images uint8 [B, H, W, 3] RGB, one string per image; may raise anything."""
        ...


class OcrScorer:
    """Scores images by the text that a recogniser reads in them."""

    def __init__(self, recognizer: Recognizer) -> None:
        self._recognizer = recognizer

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """Rewards in [0, 1]; raises `ScoringError` for any failure, a prompt without quotes
        included.
        """
        if len(images) != len(prompts):
            raise ScoringError(
                f"{len(images)} images cannot be scored against {len(prompts)} prompts"
            )
        targets = [target_text(prompt.text) for prompt in prompts]
        if not targets:
            return []
        try:
            texts = self._recognizer.recognize(images)
        except Exception as error:
            # The recogniser is foreign code: whatever it raises means that these images have no
            # reward.
            raise ScoringError(
                f"text recognition failed on {len(images)} images: {type(error).__name__}: {error}"
            ) from error
        return [ocr_reward(text, target) for text, target in zip(texts, targets, strict=True)]


def target_text(prompt: str) -> str:
    """What the image should show; raises `ScoringError` naming a prompt without text in quotes."""
    target = quoted_text(prompt)
    if not target:
        raise ScoringError(f"prompt {prompt!r} has no text in quotes for OCR to look for")
    return target


def ocr_reward(recognized: str, target: str) -> float:
    """1 - min(distance, n) / n, in [0, 1]."""
    recognized, target = plain(recognized), plain(target)
    distance = 0 if target in recognized else levenshtein(recognized, target)
    return 1 - min(distance, len(target)) / len(target)


def levenshtein(left: str, right: str) -> int:
    """Fewest insertions, deletions and substitutions that turn `left` into `right`."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]
