from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from spotlight.errors import MissingDependency
from spotlight.jobs import RewardSpec
from spotlight.rewards.base import Prompt, build_scorer
from spotlight.rewards.recognition import RapidRecognizer

pytest.importorskip("rapidocr")


def line(text: str, height: int = 16, width: int = 48) -> np.ndarray:
    image = Image.new("RGB", (width, height))
    font = ImageFont.load_default(height - 2)
    ImageDraw.Draw(image).text((width / 2, height / 2), text, font=font, anchor="mm")
    return np.asarray(image)


TEXTS = ["4821", "0937", "5566", "7102", "3984"]
IMAGES = np.stack([line(text) for text in TEXTS])


@pytest.fixture(scope="module")
def recognizer() -> RapidRecognizer:
    return RapidRecognizer()


def test_clean_digits_are_read(recognizer: RapidRecognizer) -> None:
    assert recognizer.recognize(IMAGES) == TEXTS


def test_it_reads_what_rapidocr_reads(recognizer: RapidRecognizer) -> None:
    from rapidocr import RapidOCR

    pipeline = RapidOCR(params={"Global.log_level": "error"})
    reference = [
        pipeline(image, use_det=False, use_cls=False).txts[0] for image in IMAGES[..., ::-1]
    ]
    assert recognizer.recognize(IMAGES) == reference


def test_what_is_read_does_not_depend_on_the_other_images(recognizer: RapidRecognizer) -> None:
    noisy = (
        np.random.default_rng(0).integers(0, 256, IMAGES.shape).astype(np.uint8) // 3 + IMAGES // 2
    )
    together = recognizer.recognize(noisy)
    assert together == [recognizer.recognize(image[None])[0] for image in noisy]


def test_longer_lines_and_other_sizes_are_read(recognizer: RapidRecognizer) -> None:
    [text] = recognizer.recognize(line("Spotlight", 32, 192)[None])
    assert text.strip() == "Spotlight"


def test_greedy_decoding_merges_repeats_and_drops_blanks(recognizer: RapidRecognizer) -> None:
    five, six = (recognizer._alphabet.index(character) for character in "56")
    assert recognizer.decode([0, five, five, 0, five, six, 0]) == "556"


def test_the_scorer_of_a_job_scores_images() -> None:
    scorer = build_scorer(RewardSpec(kind="ocr"))
    assert scorer.score(IMAGES[:2], [Prompt('the number "4821"'), Prompt('the number "0938"')]) == [
        1.0,
        0.75,
    ]


def test_a_missing_package_is_named_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r'pip install "\.\[rewards\]'):
        RapidRecognizer()
