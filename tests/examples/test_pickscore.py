"""The PickScore server of the examples, with a stand-in model and with a tiny random CLIP."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotlight.types import Prompt
from tests.examples.tiny_hub_models import tiny_clip

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "rewards"


@pytest.fixture
def pickscore(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("pickscore")


class Lengths:
    """Likes long prompts and bright images."""

    def similarities(self, images: np.ndarray, texts: Sequence[str]) -> list[float]:
        return [len(text) + float(image.mean()) for image, text in zip(images, texts, strict=True)]


def test_every_image_is_compared_with_its_own_prompt(pickscore: Any) -> None:
    images = np.stack([np.full((4, 4, 3), value, np.uint8) for value in (10, 20)])
    scorer = pickscore.PickScoreScorer(Lengths())
    assert scorer.score(images, [Prompt("a cat"), Prompt("a")]) == [15.0, 21.0]


def test_the_score_is_the_scaled_cosine_of_the_embeddings(pickscore: Any, tmp_path: Path) -> None:
    import torch
    from transformers import CLIPModel, CLIPProcessor

    folder = tiny_clip(tmp_path / "clip")
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    texts = ["a cat", "a dog", "a longer prompt"]
    scores = pickscore.PickScore(str(folder), str(folder), "cpu").score(
        images, [Prompt(text) for text in texts]
    )
    model, processor = (
        CLIPModel.from_pretrained(folder).eval(),
        CLIPProcessor.from_pretrained(folder),
    )
    with torch.inference_mode():
        for image, text, score in zip(images, texts, scores, strict=True):
            out = model(**processor(text=[text], images=[image], return_tensors="pt"))
            one, other = out.image_embeds[0], out.text_embeds[0]
            cosine = torch.dot(one, other) / one.norm() / other.norm()
            assert score == pytest.approx(float(model.logit_scale.exp() * cosine), rel=1e-4)
