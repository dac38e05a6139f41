"""The pipelines of diffusers, for text only.

The processor of Qwen3-VL reads pictures and videos too, for which it needs torchvision. Text goes
through its tokenizer alone, so it is made here without the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
from transformers import AutoTokenizer, ProcessorMixin, Qwen3VLProcessor

from spotlight.diffusion.families.registry import open_checkpoint

PROCESSOR = "processor"


class TextProcessor(Qwen3VLProcessor):  # type: ignore[misc]
    """Of texts; saves, and needs, the tokenizer alone."""

    def __init__(self, tokenizer: Any) -> None:
        ProcessorMixin.__init__(self, tokenizer, chat_template=tokenizer.chat_template)
        for name in ("image", "video", "vision_start", "vision_end"):
            setattr(self, f"{name}_token", f"<|{name}|>")
            setattr(self, f"{name}_token_id", None)


def load_pipeline(folder: Path, **options: Any) -> Any:
    """The pipeline of a checkpoint's family; `options` are those of diffusers."""
    family, checkpoint = open_checkpoint(folder)
    if PROCESSOR in checkpoint.parts:
        tokenizer = AutoTokenizer.from_pretrained(folder / PROCESSOR)
        options[PROCESSOR] = TextProcessor(tokenizer)
    pipeline = getattr(diffusers, family.pipeline).from_pretrained(folder, **options)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
