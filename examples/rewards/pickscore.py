"""PickScore (arXiv 2305.01569) as a reward, served from an environment of its own, with torch and
transformers:

    cd examples/rewards
    spotlight serve-reward pickscore:PickScore --options '{"model": "/models/PickScore_v1"}'

Its scores lie around 20; more is better. A job that uses it says so: `range: [0, 40]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from spotlight.types import Prompt


class Model(Protocol):
    """What tells how well images fit texts."""

    def similarities(self, images: np.ndarray, texts: Sequence[str]) -> Sequence[float]:
        """Of each image uint8 [B, H, W, 3] RGB and the text at the same place."""
        ...


class PickScoreScorer:
    """Scores images by how well a model says that they fit their prompts."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """One score per image."""
        return list(self._model.similarities(images, [prompt.text for prompt in prompts]))


class PickScore(PickScoreScorer):
    """The published model: a CLIP ViT-H/14 that learned which of two images people pick."""

    def __init__(
        self,
        model: str = "yuvalkirstain/PickScore_v1",
        processor: str = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        device: str = "cuda",
    ) -> None:
        """`model` and `processor` are folders, or names at the model hub."""
        super().__init__(Clip(model, processor, device))


class Clip:
    """A CLIP model of transformers."""

    def __init__(self, model: str, processor: str, device: str) -> None:
        import torch
        from transformers import AutoProcessor, CLIPModel

        self._inference = torch.inference_mode
        self._model = CLIPModel.from_pretrained(model).eval().to(device)
        self._processor = AutoProcessor.from_pretrained(processor)

    def similarities(self, images: np.ndarray, texts: Sequence[str]) -> list[float]:
        """Cosine of the two embeddings times the model's own scale."""
        inputs = self._processor(
            text=list(texts),
            images=list(images),
            padding=True,
            truncation=True,
            return_tensors="pt",
        )
        with self._inference():
            logits = self._model(**inputs.to(self._model.device)).logits_per_image
        return [float(each) for each in logits.diagonal()]
