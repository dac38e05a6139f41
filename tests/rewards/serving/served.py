"""Scorers that the tests have served."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from spotlight.errors import ScoringError
from spotlight.types import Prompt


class Mean:
    """The mean of the pixels, in [0, scale]."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        return [float(image.mean() / 255) * self.scale for image in images]


class Told:
    """What the prompt's metadata say; a prompt `fail` fails."""

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        if any(prompt.text == "fail" for prompt in prompts):
            raise ScoringError("it is told to fail")
        return [prompt.metadata["reward"] for prompt in prompts]


class SourceBytes:
    """How many bytes the file of the image has that was to be changed."""

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        return [float(len(prompt.image)) for prompt in prompts]


class Hangs:
    """Never answers."""

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        time.sleep(3600)
        return []
