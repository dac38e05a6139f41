"""The pipeline of Qwen-Image-Edit on machines without torchvision, where transformers cannot make
its processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import PIL.Image
import torch
from diffusers import QwenImageEditPlusPipeline
from torch import Tensor
from transformers import AutoTokenizer, BatchFeature, ProcessorMixin, Qwen2VLImageProcessorPil

from spotlight_simulation.pixels import gradient_image

_PAD = "<|image_pad|>"
IMAGES = (gradient_image(640, 640, 1), gradient_image(640, 640, 2))
"""Images to be changed, of one size."""


class EditProcessor(ProcessorMixin):  # type: ignore[misc]  # for pipelines look at the class
    """What a Qwen2VLProcessor does with one image and one text."""

    def __init__(self, folder: Path) -> None:
        # What is made there needs torchvision.
        self._images = Qwen2VLImageProcessorPil.from_pretrained(folder / "processor")
        self._tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")

    def __call__(
        self, text: Sequence[str], images: Sequence[PIL.Image.Image], **options: Any
    ) -> BatchFeature:
        """Its input of the text encoder."""
        seen = self._images(images=list(images), return_tensors="pt")
        pads = int(seen["image_grid_thw"].prod()) // self._images.merge_size**2
        filled = [each.replace(_PAD, _PAD * pads) for each in text]
        return BatchFeature({**self._tokenizer(filled, **options), **seen})


def load_edit_pipeline(folder: Path, dtype: torch.dtype) -> Any:
    """The pipeline of a checkpoint."""
    return QwenImageEditPlusPipeline.from_pretrained(
        folder, processor=EditProcessor(folder), torch_dtype=dtype
    )


def draw_edits(
    pipeline: Any,
    prompt: Sequence[str],
    latents: Tensor,
    *,
    negative_prompt: Sequence[str | None] = (None, None),
    **options: Any,
) -> tuple[Tensor]:
    """The first prompt with the first of the `IMAGES`, and so on; the pipeline takes one at a
    time. The result is as a pipeline of several prompts would give it.
    """
    drawn = [
        pipeline(image=image, prompt=text, latents=noise, negative_prompt=negative, **options)[0]
        for image, text, noise, negative in zip(
            IMAGES, prompt, latents.split(1), negative_prompt, strict=True
        )
    ]
    return (torch.cat([torch.as_tensor(each) for each in drawn]),)
