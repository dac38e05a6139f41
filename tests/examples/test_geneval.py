"""The GenEval server of the examples, with a stand-in detector and with tiny random models."""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotlight.errors import ScoringError
from spotlight.rewards.compositional import DetectedObject
from spotlight.types import Prompt

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
    detector = module.Mask2FormerDetector(str(models[0]), str(models[1]), "cpu")
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


def tiny_mask2former(folder: Path) -> Path:
    import torch
    from transformers import (
        Mask2FormerConfig,
        Mask2FormerForUniversalSegmentation,
        Mask2FormerImageProcessor,
        SwinConfig,
    )

    torch.manual_seed(0)
    names = {0: "dog", 1: "mouse"}
    config = Mask2FormerConfig(
        backbone_config=SwinConfig(
            image_size=64,
            embed_dim=8,
            depths=[1, 1, 1, 1],
            num_heads=[1, 1, 1, 1],
            window_size=2,
            out_features=["stage1", "stage2", "stage3", "stage4"],
        ),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        dim_feedforward=16,
        num_queries=8,
        id2label=names,
        label2id={name: index for index, name in names.items()},
    )
    Mask2FormerForUniversalSegmentation(config).save_pretrained(folder)
    Mask2FormerImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder


def tiny_clip(folder: Path) -> Path:
    import torch
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    torch.manual_seed(0)
    letters = [chr(letter) for letter in range(ord("a"), ord("z") + 1)] + ["-"]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps({name: row for row, name in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    end = len(tokens) - 1
    common = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = CLIPConfig(
        text_config={
            **common,
            "num_attention_heads": 2,
            "vocab_size": len(tokens),
            "bos_token_id": end - 1,
            "eos_token_id": end,
            "pad_token_id": end,
        },
        vision_config={**common, "num_attention_heads": 2, "image_size": 32, "patch_size": 16},
        projection_dim=8,
    )
    CLIPModel(config).save_pretrained(folder)
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder
