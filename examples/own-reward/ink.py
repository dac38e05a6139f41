"""A reward of one's own: how near an image comes to a wanted share of bright pixels."""

from collections.abc import Sequence

import numpy as np

from spotlight.rewards.base import Prompt


class Ink:
    def __init__(self, share: float = 0.2) -> None:
        self.share = share

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        bright = (images > 127).mean(axis=(1, 2, 3))
        wanted = [prompt.metadata.get("share", self.share) for prompt in prompts]
        return [1 - abs(float(one) - share) for one, share in zip(bright, wanted, strict=True)]
