"""The GenEval server of the examples, with a stand-in detector and with tiny random models."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotlight.errors import ScoringError
from spotlight.rewards.compositional import DetectedObject
from spotlight.types import Prompt
from tests.examples.tiny_hub_models import tiny_clip, tiny_mask2former

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "rewards"
IMAGES = np.zeros((1, 8, 8, 3), np.uint8)
TWO_DOGS = {"tag": "counting", "include": [{"class": "dog", "count": 2}]}
RED_DOG = {"tag": "colors", "include": [{"class": "dog", "count": 1, "color": "red"}]}
NO_CAT = {**RED_DOG, "exclude": [{"class": "cat", "count": 1}]}


@pytest.fixture
def geneval(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("geneval")


class Finds:
    """A detector that finds what the test says, and notes what it is asked."""

    def __init__(self, *objects: tuple[str, str]) -> None:
        self.objects = [
            DetectedObject(name, colour, (10.0 * row, 0.0, 10.0 * row + 5, 5.0))
            for row, (name, colour) in enumerate(objects)
        ]
        self.asked: list[tuple[set[str], float]] = []

    def detect(
        self, image: np.ndarray, classes: Collection[str], threshold: float
    ) -> list[DetectedObject]:
        self.asked.append((set(classes), threshold))
        if "unicorn" in classes:
            raise ValueError("the detector does not know the class 'unicorn'")
        return [one for one in self.objects if one.name in classes]


@pytest.mark.parametrize(
    ("objects", "metadata", "reward"),
    [
        ([("dog", "red")], RED_DOG, 1.0),
        ([("dog", "blue")], RED_DOG, 0.5),
        ([], RED_DOG, 0.0),
        ([("dog", "red"), ("person", "blue")], RED_DOG, 1.0),
        ([("dog", "red"), ("cat", "blue")], NO_CAT, 0.5),
        ([("dog", "red")], TWO_DOGS, 0.5),
        ([("dog", "red"), ("dog", "blue")], TWO_DOGS, 1.0),
    ],
)
def test_an_image_is_worth_how_much_of_what_was_asked_for_is_there(
    geneval: Any, objects: list[tuple[str, str]], metadata: dict[str, Any], reward: float
) -> None:
    scorer = geneval.GenEvalScorer(Finds(*objects))
    assert scorer.score(IMAGES, [Prompt("a photo", metadata)]) == [reward]


def test_objects_that_are_counted_must_be_surer_as_in_geneval(geneval: Any) -> None:
    detector = Finds()
    scorer = geneval.GenEvalScorer(detector)
    scorer.score(IMAGES, [Prompt("two dogs", TWO_DOGS)])
    scorer.score(IMAGES, [Prompt("a red dog", NO_CAT)])
    assert detector.asked == [({"dog"}, 0.9), ({"dog", "cat"}, 0.3)]


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({}, "tag"),
        ({"tag": "colors", "include": []}, "must ask for something"),
        ({"tag": "single_object", "include": [{"class": "unicorn", "count": 1}]}, "unicorn"),
    ],
)
def test_a_prompt_that_cannot_be_scored_is_named(
    geneval: Any, metadata: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ScoringError, match=f"a photo.*{problem}"):
        geneval.GenEvalScorer(Finds()).score(IMAGES, [Prompt("a photo", metadata)])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a tiny Mask2Former and a tiny CLIP with random weights."""
    folder = tmp_path_factory.mktemp("models")
    return tiny_mask2former(folder / "mask2former"), tiny_clip(folder / "clip")


def test_the_detector_finds_objects_with_models_of_transformers(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("geneval_detector")
    detector = module.Mask2FormerDetector(str(models[0]), str(models[1]), None)
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    classes = {"dog", "computer mouse"}
    found = detector.detect(image, classes, threshold=0.0)
    assert found
    for one in found:
        left, top, right, bottom = one.box
        assert one.name in classes
        assert one.colour in module.COLOURS
        assert 0 <= left < right <= 64
        assert 0 <= top < bottom <= 64
    assert detector.detect(image, classes, threshold=1.0) == []
    with pytest.raises(ValueError, match="unicorn"):
        detector.detect(image, {"unicorn"}, threshold=0.0)
