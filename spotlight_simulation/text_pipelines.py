"""The pipelines of diffusers on machines without torchvision.

The processors of Qwen2-VL and Qwen3-VL read videos too, for which they need it. Text goes through
the tokenizer alone, and images through their own processor, so they are made here without the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import diffusers
from transformers import (
    AutoTokenizer,
    BatchFeature,
    ProcessorMixin,
    Qwen2VLImageProcessorPil,
    Qwen3VLProcessor,
)

from spotlight.diffusion.families.registry import open_checkpoint

PROCESSOR = "processor"
_PAD = "<|image_pad|>"


class TextProcessor(Qwen3VLProcessor):
    """Of texts; saves, and needs, the tokenizer alone."""

    def __init__(self, tokenizer: Any) -> None:
        ProcessorMixin.__init__(self, tokenizer, chat_template=tokenizer.chat_template)
        for name in ("image", "video", "vision_start", "vision_end"):
            setattr(self, f"{name}_token", f"<|{name}|>")
            setattr(self, f"{name}_token_id", None)


class EditProcessor(ProcessorMixin):
    """What a Qwen2VLProcessor does with one text and one image."""

    def __init__(self, folder: Path) -> None:
        self._images = Qwen2VLImageProcessorPil.from_pretrained(folder / PROCESSOR)
        self._tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")

    def __call__(self, text: Sequence[str], images: Sequence[Any], **options: Any) -> BatchFeature:
        """The input of the text encoder."""
        seen = self._images(images=list(images), return_tensors="pt")
        pads = int(seen["image_grid_thw"].prod()) // self._images.merge_size**2
        filled = [each.replace(_PAD, _PAD * pads) for each in text]
        return BatchFeature({**self._tokenizer(filled, **options), **seen})


def load_pipeline(folder: Path, **options: Any) -> Any:
    """The pipeline of a checkpoint's family; `options` are those of diffusers."""
    family, checkpoint = open_checkpoint(folder)
    if family.image_processor:
        options[PROCESSOR] = EditProcessor(folder)
    elif PROCESSOR in checkpoint.parts:
        tokenizer = AutoTokenizer.from_pretrained(folder / PROCESSOR)
        options[PROCESSOR] = TextProcessor(tokenizer)
    pipeline = getattr(diffusers, family.pipeline).from_pretrained(folder, **options)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
