"""A reward that needs no packages, for jobs with models that draw noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spotlight.types import Prompt


class Brightness:
    """How bright an image is."""

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """See `spotlight.rewards.base.Scorer`."""
        return [float(image.mean() / 255) for image in images]
