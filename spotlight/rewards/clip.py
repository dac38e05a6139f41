"""Rewards that a CLIP model of transformers gives, by the formulas of their authors.

- `clip`: CLIPScore (arXiv 2104.08718), 2.5 max(cos, 0) with the caption "A photo depicts PROMPT".
- `pickscore`: PickScore (arXiv 2305.01569), the model's own scale times cos.
- `hpsv2`: HPS v2 (arXiv 2306.09341), cos.
- `aesthetic`: LAION's predictor v2, five linear layers on the image's embedding of length 1.

cos is that of the embeddings of image and text. Every forward pass has the same size and texts the
same length, so that a reward does not depend on the batch that its image came in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spotlight.errors import MissingDependency, ScoringError, how_to_install
from spotlight.jobs.clip_rewards import ClipSpec
from spotlight.rewards.hub_models import device_of, named, require_plain, weights_of
from spotlight.text import error_text
from spotlight.types import Prompt

ROWS = 8
"""Images of a forward pass; a smaller batch is padded."""
_LAYERS = (1024, 128, 64, 16, 1)
"""How many numbers each layer of the aesthetic predictor gives."""
_DROPOUT = (0.2, 0.2, 0.1)
"""The dropout behind each of the first layers, which the names in the file count too."""

_FORMULAS: dict[str, Callable[[Any, Any], Any]] = {
    "clip": lambda cosines, scale: 2.5 * cosines.clamp(min=0),
    "pickscore": lambda cosines, scale: scale * cosines,
    "hpsv2": lambda cosines, scale: cosines,
}
"""Rewards by the cosines and the model's scale."""


class ClipScorer:
    """Scores images by what a CLIP model says of them; see the module's docstring."""

    def __init__(self, kind: str, spec: ClipSpec) -> None:
        """Raises `MissingDependency`, and `ScoringError` when the weights cannot be loaded."""
        try:
            import torch
            from safetensors import SafetensorError
            from transformers import AutoProcessor
        except ImportError as error:
            raise MissingDependency(
                f"the `{kind}` reward needs {error.name}; {how_to_install('worker')}"
            ) from error
        self._torch, self._kind = torch, kind
        self._device = device_of(torch, spec)
        checkpoint, processor = spec.of(kind)
        try:
            self._processor: Any = AutoProcessor.from_pretrained(
                **named(processor), trust_remote_code=False
            )
            model, found = _class_of(kind).from_pretrained(
                **named(checkpoint), use_safetensors=True, output_loading_info=True
            )
            require_plain(weights_of(checkpoint))
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise ScoringError(
                f"clip.checkpoint: the weights of `{checkpoint}` cannot be loaded"
                f" ({error_text(error)})"
            ) from error
        missing = sorted(found["missing_keys"])
        if missing:  # transformers draws these at random
            raise ScoringError(
                f"clip.checkpoint: `{checkpoint}` has no {missing[0]} and is no model for the"
                f" `{kind}` reward; name another one"
            )
        self._model: Any = model.to(device=self._device, dtype=torch.float32).eval()

    def score(self, images: np.ndarray, prompts: Sequence[Prompt]) -> list[float]:
        """One reward per image uint8 [B, H, W, 3] RGB."""
        texts = [self._text(prompt) for prompt in prompts]
        rewards: list[float] = []
        for first in range(0, len(texts), ROWS):
            part = slice(first, first + ROWS)
            rewards += self._rewards(images[part], texts[part])
        return rewards

    def _text(self, prompt: Prompt) -> str:
        return f"A photo depicts {prompt.text}" if self._kind == "clip" else prompt.text

    def _rewards(self, images: np.ndarray, texts: Sequence[str]) -> list[float]:
        count, torch = len(texts), self._torch
        padded = [*images, *[images[-1]] * (ROWS - count)]
        with torch.inference_mode():
            if self._kind == "aesthetic":
                inputs = self._processor.image_processor(images=padded, return_tensors="pt")
                found = self._model(inputs["pixel_values"].to(self._device))
            else:
                found = self._compared(padded, [*texts, *[""] * (ROWS - count)])
        return [float(each) for each in found[:count].cpu()]

    def _compared(self, images: Sequence[np.ndarray], texts: Sequence[str]) -> Any:
        inputs = self._processor(
            text=texts,
            images=images,
            padding="max_length",
            truncation=True,
            max_length=self._model.config.text_config.max_position_embeddings,
            return_tensors="pt",
        )
        out = self._model(**inputs.to(self._device))  # its embeddings have length 1
        cosines = (out.image_embeds * out.text_embeds).sum(dim=-1)
        return _FORMULAS[self._kind](cosines, self._model.logit_scale.exp())


def _class_of(kind: str) -> Any:
    from transformers import CLIPModel

    return _aesthetic_predictor() if kind == "aesthetic" else CLIPModel


def _aesthetic_predictor() -> Any:
    """The class of LAION's predictor: the layers on an image's embedding, with the names of the
    published file."""
    from torch import nn
    from transformers import CLIPVisionModelWithProjection

    class AestheticPredictor(CLIPVisionModelWithProjection):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            layers: list[nn.Module] = []
            width = config.projection_dim
            for index, wider in enumerate(_LAYERS):
                layers.append(nn.Linear(width, wider))
                layers += [nn.Dropout(share) for share in _DROPOUT[index : index + 1]]
                width = wider
            self.layers = nn.Sequential(*layers)
            self.post_init()  # type: ignore[no-untyped-call]

        def forward(self, pixel_values: Any) -> Any:
            """The scores [B] of prepared images [B, 3, H, W]."""
            embeddings = super().forward(pixel_values=pixel_values).image_embeds
            return self.layers(embeddings / embeddings.norm(dim=-1, keepdim=True))[:, 0]

    return AestheticPredictor
