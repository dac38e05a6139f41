"""A reward for tests of editing: how near an image is to the one that was to be changed."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import PIL.Image

from spotlight.types import Prompt


class Closeness:
    """From 0 to 1; raises `ValueError` for a prompt without an image."""

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """See `spotlight.rewards.base.Scorer`."""
        return [self._of(image, each.image) for image, each in zip(images, prompts, strict=True)]

    @staticmethod
    def _of(image: np.ndarray, source: bytes) -> float:
        height, width = image.shape[:2]
        before = PIL.Image.open(io.BytesIO(source)).convert("RGB").resize((width, height))
        return 1 - float(np.abs(image.astype(float) - np.asarray(before)).mean()) / 255
