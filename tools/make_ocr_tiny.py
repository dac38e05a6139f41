"""Make the built-in checkpoint `ocr-tiny` from nothing: a Qwen-Image-shaped pixel-space DiT that
draws four digits.

Deterministic from the seed on one machine; a few minutes on one CPU core. Two phases of flow
matching: the first, with true captions, teaches the model to draw the number that it is asked for;
the second, short one, in which most captions name another number, makes it unsure whether it
should. The model is left there on purpose: it draws clean digits, often not the right ones, and
reinforcement learning can fix that within minutes.

    python tools/make_ocr_tiny.py --folder spotlight/assets/ocr-tiny
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from tiny_checkpoints import Recipe, make, parse_arguments
from torch import Tensor

from spotlight.rewards.ocr import OcrScorer
from spotlight.rewards.recognition import RapidRecognizer
from spotlight.types import Prompt

HEIGHT, WIDTH, DIGITS = 16, 48, 4
FONT_SIZE = 16
CELL = WIDTH // DIGITS
PROMPT = 'the number "{}"'
VALIDATION_PROMPTS, TRAIN_PROMPTS = 32, 512


class Numbers:
    """The task: numbers of four digits, drawn with PIL's own font; shown is digits [B, DIGITS]."""

    height, width, patch, colours = HEIGHT, WIDTH, 4, 1
    shift, axes = 1.0, (8, 8, 16)
    words: tuple[str, ...] = ("the", "number")
    characters = '"0123456789'
    tokens = 8

    def __init__(self, seed: int) -> None:
        order = torch.randperm(10**DIGITS, generator=torch.Generator().manual_seed(seed)).tolist()
        held_out = order[:VALIDATION_PROMPTS]
        self._validation = [_prompt(number) for number in held_out]
        self._train = [
            _prompt(number)
            for number in order[VALIDATION_PROMPTS : VALIDATION_PROMPTS + TRAIN_PROMPTS]
        ]
        known = sorted(set(range(10**DIGITS)) - set(held_out))
        self._known = torch.tensor([[int(digit) for digit in _digits(n)] for n in known])
        self._bank = glyph_bank()

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Pictures of known numbers; one offset and brightness per picture."""
        digits = self._known[torch.randint(len(self._known), (count,), generator=generator)]
        offset = torch.randint(len(self._bank), (count, 1), generator=generator)
        brightness = 0.8 + 0.2 * torch.rand(count, 1, 1, 1, generator=generator)
        cells = self._bank[offset, digits] * brightness
        return cells.permute(0, 2, 1, 3).reshape(count, 1, HEIGHT, WIDTH) * 2 - 1, digits

    def captions(self, shown: Tensor, wrong: float, generator: torch.Generator) -> list[str]:
        """Prompts for digits [B, DIGITS]: a share of them names a random number."""
        others = torch.randint(10, shown.shape, generator=generator)
        named = torch.where(torch.rand(len(shown), 1, generator=generator) < wrong, others, shown)
        return [PROMPT.format("".join(map(str, row))) for row in named.tolist()]

    def validation_prompts(self) -> list[Prompt]:
        """Of numbers that are never drawn."""
        return [Prompt(text) for text in self._validation]

    def prompt_files(self) -> dict[str, str]:
        """One prompt a line."""
        lists = {"train.txt": self._train, "validation.txt": self._validation}
        return {name: "".join(f"{prompt}\n" for prompt in each) for name, each in lists.items()}

    def scorer(self) -> OcrScorer:
        """The OCR reward."""
        return OcrScorer(RapidRecognizer())


def glyph_bank() -> Tensor:
    """Digits [offsets, 10, HEIGHT, CELL] in [0, 1]: PIL's own font, shifted sideways by up to a
    pixel.
    """
    font = ImageFont.load_default(FONT_SIZE)
    variants = []
    for offset in (-1, 0, 1):
        row = []
        for digit in "0123456789":
            image = Image.new("L", (CELL, HEIGHT), 0)
            centre = (CELL / 2 + offset, HEIGHT / 2)
            ImageDraw.Draw(image).text(centre, digit, fill=255, font=font, anchor="mm")
            row.append(np.asarray(image, dtype=np.float32) / 255)
        variants.append(np.stack(row))
    return torch.from_numpy(np.stack(variants))


def _digits(number: int) -> str:
    return f"{number:0{DIGITS}d}"


def _prompt(number: int) -> str:
    return PROMPT.format(_digits(number))


if __name__ == "__main__":
    folder, recipe = parse_arguments(__doc__, Recipe())
    make(Numbers(recipe.seed), recipe, folder)
