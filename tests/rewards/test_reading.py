"""Whole pictures are read as RapidOCR reads them, and strips as before."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rapidocr")

from benchmarks.signs import draw_signs
from spotlight.jobs import RewardSpec
from spotlight.rewards.base import build_scorer
from spotlight.rewards.ocr import OcrScorer
from spotlight.rewards.reading import RapidReader, is_strip, reading_order
from spotlight.rewards.recognition import RapidRecognizer
from spotlight.types import Prompt


@pytest.fixture(scope="module")
def reader() -> RapidReader:
    return RapidReader()


def box(left: float, top: float, right: float, bottom: float) -> list[list[float]]:
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


@pytest.mark.parametrize(
    ("height", "width", "strip"),
    [
        (16, 48, True),
        (32, 64, True),
        (48, 4000, True),
        (48, 48, True),
        (49, 49, False),
        (64, 513, True),
        (64, 512, False),
        (512, 512, False),
    ],
)
def test_what_is_as_high_as_a_line_or_far_wider_than_high_is_a_strip(
    height: int, width: int, strip: bool
) -> None:
    assert is_strip(height, width) is strip


def test_a_strip_gets_the_rewards_of_the_recogniser_alone(reader: RapidReader) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (8, 16, 48, 3)).astype(np.uint8)
    strips = np.stack([sign.picture[248:264, 100:148] for sign in draw_signs(8, 512, 0)])
    prompts = [Prompt(f'"{number}"') for number in range(1000, 1016)]
    images = np.concatenate([noise, strips])
    alone = OcrScorer(RapidRecognizer()).score(images, prompts)
    assert OcrScorer(reader).score(images, prompts) == alone


@pytest.mark.parametrize("edge", [512, 768])
def test_a_perfect_sign_is_worth_1_and_an_empty_one_nothing(reader: RapidReader, edge: int) -> None:
    signs = draw_signs(3, edge, seed=5)
    prompts = [Prompt(sign.prompt) for sign in signs]
    scorer = OcrScorer(reader)
    assert scorer.score(np.stack([sign.picture for sign in signs]), prompts) == [1.0] * 3
    assert scorer.score(np.stack([sign.empty for sign in signs]), prompts) == [0.0] * 3


def test_what_is_read_does_not_depend_on_the_other_pictures(reader: RapidReader) -> None:
    pictures = np.stack([sign.picture for sign in draw_signs(2, 512, seed=6)])
    assert reader.recognize(pictures[::-1]) == reader.recognize(pictures)[::-1]


def test_the_ocr_reward_of_a_job_reads_whole_pictures() -> None:
    [sign] = draw_signs(1, 512, seed=7)
    scorer = build_scorer(RewardSpec(kind="ocr"))
    assert scorer.score(sign.picture[None], [Prompt(sign.prompt)]) == [1.0]


def test_lines_are_read_from_top_to_bottom_and_from_left_to_right() -> None:
    boxes = [box(200, 100, 300, 140), box(0, 0, 90, 40), box(0, 100, 90, 140), box(200, 0, 300, 40)]
    assert list(reading_order(np.array(boxes))) == [1, 3, 2, 0]


def test_words_of_one_line_may_differ_in_height() -> None:
    low, high = box(0, 30, 90, 80), box(100, 0, 190, 90)
    assert list(reading_order(np.array([high, low]))) == [1, 0]


def test_of_nothing_there_is_no_order() -> None:
    assert list(reading_order(np.zeros((0, 4, 2)))) == []
