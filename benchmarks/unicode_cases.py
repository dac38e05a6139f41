"""Text as people write it, and what a sign says that fits: cases of the OCR reward that are judged
without reading a picture."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from spotlight.rewards.ocr import OcrScorer
from spotlight.types import Prompt

CASES = Path(__file__).with_suffix(".jsonl")


class UnicodeCase(msgspec.Struct, frozen=True):
    """A prompt, what is read in its image, and the reward of that."""

    what: str
    prompt: str
    read: str
    reward: float


class _Reads:
    def __init__(self, text: str) -> None:
        self._text = text

    def recognize(self, images: np.ndarray) -> list[str]:
        return [self._text] * len(images)


def unicode_cases() -> list[UnicodeCase]:
    """All of them."""
    return [msgspec.json.decode(line, type=UnicodeCase) for line in CASES.read_bytes().splitlines()]


def reward_of(case: UnicodeCase) -> float:
    """What the `ocr` reward gives a sign that is read so."""
    image = np.zeros((1, 8, 8, 3), np.uint8)
    return OcrScorer(_Reads(case.read)).score(image, [Prompt(case.prompt)])[0]
