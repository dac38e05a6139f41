"""A scorer on a server: sends it images and prompts in the format of `schema`.

A failure, a null, and an answer that cannot be believed are a `ScoringError` that names the image
and the reason. None of these ever counts as a reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from spotlight.errors import ScoringError
from spotlight.rewards.endpoint import Poster
from spotlight.rewards.schema import (
    VERSION,
    ImageFormat,
    ImageToScore,
    ScoreRequest,
    image_to_score,
    read_rewards,
)
from spotlight.types import Prompt

_NAMED_PROBLEMS = 3


class HttpScorer:
    """Asks a server for rewards."""

    def __init__(
        self,
        poster: Poster,
        *,
        image_format: ImageFormat = "png",
        images_per_request: int = 8,
        limits: tuple[float, float] | None = None,
    ) -> None:
        """`limits` are the least and the greatest reward that is believed; None for any finite
        number.
        """
        self._poster = poster
        self._format: ImageFormat = image_format
        self._images_per_request = images_per_request
        self._limits = limits

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """One reward per image uint8 [B, H, W, 3] RGB. Raises `ScoringError` unless all have one,
        naming each image that has none (the first of them, when they are many), and why.
        """
        wanted = [
            image_to_score(row, image, prompt, self._format)
            for row, (image, prompt) in enumerate(zip(images, prompts, strict=True))
        ]
        size = self._images_per_request
        parts = [wanted[first : first + size] for first in range(0, len(wanted), size)]
        rewards: dict[str, float] = {}
        problems: dict[str, str] = {}
        for part, answer in zip(parts, self._poster.post_all(list(map(_body, parts))), strict=True):
            ids = [image.id for image in part]
            try:
                if isinstance(answer, ScoringError):
                    raise answer
                scored, unscored = read_rewards(answer, ids, self._limits)
            except ScoringError as error:
                scored, unscored = {}, dict.fromkeys(ids, str(error))
            rewards |= scored
            problems |= unscored
        if problems:
            raise ScoringError(not_scored(problems, len(wanted)))
        return [rewards[image.id] for image in wanted]


def not_scored(problems: Mapping[str, str], images: int) -> str:
    """One line about the images that have no reward, by id, of so many."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in problems.items():
        by_reason.setdefault(reason, []).append(name)
    told = [
        f"{', '.join(names[:_NAMED_PROBLEMS])}"
        + (f" and {len(names) - _NAMED_PROBLEMS} more" if len(names) > _NAMED_PROBLEMS else "")
        + f": {' '.join(reason.split())}"
        for reason, names in list(by_reason.items())[:_NAMED_PROBLEMS]
    ]
    more = len(by_reason) - len(told)
    return f"{len(problems)} of {images} images have no reward: image {'; image '.join(told)}" + (
        f"; and {more} other reasons" if more else ""
    )


def _body(images: Sequence[ImageToScore]) -> bytes:
    return msgspec.json.encode(ScoreRequest(version=VERSION, images=tuple(images)))
