"""Rewards of videos, by their frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import pytest

from spotlight.errors import ScoringError
from spotlight.rewards.base import FrameScorer, Scorer
from spotlight.types import Prompt

PROMPTS = [Prompt("dark"), Prompt("bright")]


class Pixel:
    """The first value of an image; knows what it was asked."""

    def __init__(self, leaves_out: int = 0) -> None:
        self.prompts: list[str] = []
        self._leaves_out = leaves_out

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> Sequence[float]:
        assert images.ndim == 4
        self.prompts += [prompt.text for prompt in prompts]
        return [float(image[0, 0, 0]) for image in images[self._leaves_out :]]


def test_the_reward_of_a_video_is_the_mean_of_its_frames() -> None:
    videos = np.zeros((2, 3, 4, 4, 3), dtype=np.uint8)
    videos[0, :, 0, 0, 0] = (1, 2, 6)
    videos[1, :, 0, 0, 0] = (10, 10, 40)
    scorer = Pixel()
    assert FrameScorer(scorer).score(videos, PROMPTS) == [3.0, 20.0]
    assert scorer.prompts == ["dark", "bright"] * 3, "frames of one time are scored together"


def test_images_are_scored_as_they_are() -> None:
    images = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    images[:, 0, 0, 0] = (7, 9)
    assert FrameScorer(Pixel()).score(images, PROMPTS) == [7.0, 9.0]


def test_frames_may_be_scored_one_after_the_other_as_images_may() -> None:
    class Each:
        def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> Iterator[float]:
            yield from (float(image.mean()) for image in images)

    videos = np.ones((2, 3, 4, 4, 3), dtype=np.uint8)
    assert FrameScorer(cast(Scorer, Each())).score(videos, PROMPTS) == [1.0, 1.0]


@pytest.mark.parametrize("shape", [(2, 4, 4, 3), (2, 3, 4, 4, 3)])
def test_a_scorer_that_writes_into_its_images_changes_nobody_elses(shape: tuple[int, ...]) -> None:
    class Painter:
        def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> Sequence[float]:
            images[:] = 255
            return [0.0] * len(prompts)

    images = np.zeros(shape, dtype=np.uint8)
    FrameScorer(Painter()).score(images, PROMPTS)
    assert images.max() == 0


def test_a_frame_without_a_reward_is_a_failure() -> None:
    videos = np.zeros((2, 3, 4, 4, 3), dtype=np.uint8)
    with pytest.raises(ScoringError, match="1 rewards for 2 frames"):
        FrameScorer(Pixel(leaves_out=1)).score(videos, PROMPTS)
