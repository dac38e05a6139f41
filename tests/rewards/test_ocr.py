from __future__ import annotations

import numpy as np
import pytest

from spotlight.errors import ScoringError
from spotlight.rewards.base import Prompt
from spotlight.rewards.ocr import OcrScorer, levenshtein, ocr_reward, target_text

IMAGES = np.zeros((2, 16, 48, 3), dtype=np.uint8)


class Reads:
    """A recogniser that reads what the test says."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    def recognize(self, images: np.ndarray) -> list[str]:
        return self.texts


class Breaks:
    def recognize(self, images: np.ndarray) -> list[str]:
        raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("recognized", "target", "reward"),
    [
        ("4821", "4821", 1.0),
        ("x4821y", "4821", 1.0),
        ("4 8 2 1", "4821", 1.0),
        ("\u30004821", "4821", 1.0),
        ("OPEN", "open", 1.0),
        ("4829", "4821", 0.75),
        ("48", "4821", 0.5),
        ("", "4821", 0.0),
        ("something else entirely", "4821", 0.0),
    ],
)
def test_the_reward_is_one_minus_the_relative_distance(
    recognized: str, target: str, reward: float
) -> None:
    assert ocr_reward(recognized, target) == reward


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [("", "", 0), ("abc", "", 3), ("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2)],
)
def test_levenshtein_counts_the_fewest_edits(left: str, right: str, distance: int) -> None:
    assert levenshtein(left, right) == distance


@pytest.mark.parametrize("prompt", ["a cat", 'a "cat', '""', 'a 5" disk'])
def test_a_prompt_without_quoted_text_is_an_error_that_names_it(prompt: str) -> None:
    with pytest.raises(ScoringError) as error:
        target_text(prompt)
    assert repr(prompt) in str(error.value)


def test_every_image_is_scored_against_its_own_prompt() -> None:
    scorer = OcrScorer(Reads("12", "34"))
    assert scorer.score(IMAGES, [Prompt('"12"'), Prompt('"12"')]) == [1.0, 0.0]


def test_a_failing_recogniser_is_an_error_and_not_a_reward() -> None:
    with pytest.raises(ScoringError, match="out of memory"):
        OcrScorer(Breaks()).score(IMAGES, [Prompt('"12"'), Prompt('"34"')])


def test_images_and_prompts_must_be_as_many() -> None:
    with pytest.raises(ScoringError, match="2 images"):
        OcrScorer(Reads("12", "34")).score(IMAGES, [Prompt('"12"')])
