"""Drawn signs: pictures that say exactly what their prompts ask for, as a perfect model would make
them, and the same pictures without their text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WORDS = (
    "OPEN", "Coffee", "Market", "Welcome", "Garden", "Library", "Fresh", "Bread", "Station",
    "Parking", "Museum", "Danger", "Keep", "Quiet", "Closed", "Sunday", "Flowers", "Harbour",
    "Summer", "Winter", "Theatre", "Exit", "Platform", "Tickets", "Lemonade", "Bicycle", "Repair",
    "Hotel", "Beach", "Night", "Morning", "River", "Mountain", "School", "Street", "Bakery",
    "2026", "No. 7", "24 hours", "Gate 12", "50 km",
)  # fmt: skip
COLOURS = (
    ("#101010", "#f5f0e6"),
    ("#ffffff", "#20406a"),
    ("#ffe14d", "#263018"),
    ("#7a1020", "#e8d9b0"),
    ("#f4f4f4", "#8a2a12"),
    ("#0c3b2e", "#cfe3d4"),
)
"""The colours of text and background."""
SYSTEM_FONTS = Path("/usr/share/fonts/truetype/dejavu")
FACES = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSans-Oblique.ttf",
    "DejaVuSansCondensed-Bold.ttf",
)
"""The typefaces of Debian's package `fonts-dejavu`; Aileron, which Pillow ships, is used besides,
or alone."""
AILERON = "Aileron"


@dataclass(frozen=True)
class Sign:
    """One picture uint8 [H, W, 3] and what it says."""

    prompt: str
    picture: np.ndarray
    empty: np.ndarray
    """The same picture without text."""


def fonts() -> tuple[str, ...]:
    """The faces that are there."""
    return (AILERON, *(face for face in FACES if (SYSTEM_FONTS / face).is_file()))


def draw_signs(count: int, edge: int, seed: int) -> list[Sign]:
    """Signs of `edge` x `edge` pixels with one to six words on one to three lines."""
    rng = random.Random(seed)
    return [_draw(edge, rng) for _ in range(count)]


def _draw(edge: int, rng: random.Random) -> Sign:
    words = rng.sample(WORDS, rng.randint(1, 6))
    lines = _lines(words, rng.randint(1, min(3, len(words))))
    face, (ink, ground) = rng.choice(fonts()), rng.choice(COLOURS)
    size = _fitting(lines, face, edge, rng.uniform(0.05, 0.16))
    board = Image.new("RGB", (edge, edge), ground)
    draw = ImageDraw.Draw(board)
    margin = edge // 40
    draw.rectangle((margin, margin, edge - margin, edge - margin), outline=ink, width=edge // 160)
    empty = np.asarray(board).copy()
    height = 1.5 * size * len(lines)
    top = edge / 2 - height / 2 + rng.uniform(-0.5, 0.5) * (0.8 * edge - height)
    for row, line in enumerate(lines):
        at = edge / 2, top + 1.5 * size * (row + 0.5)
        draw.text(at, line, font=_font(face, size), fill=ink, anchor="mm")
    return Sign(f'A sign that says "{" ".join(lines)}"', np.asarray(board).copy(), empty)


def _lines(words: Sequence[str], count: int) -> list[str]:
    """The words on so many lines, as evenly as can be."""
    bounds = [round(row * len(words) / count) for row in range(count + 1)]
    return [" ".join(words[a:b]) for a, b in pairwise(bounds)]


def _fitting(lines: Sequence[str], face: str, edge: int, share: float) -> int:
    """Pixels: the size that is this share of the edge, or what fits into nine tenths of it."""
    size = int(share * edge)
    longest = max(_font(face, size).getlength(line) for line in lines)
    return min(size, int(size * 0.9 * edge / longest))


@cache
def _font(face: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    if face == AILERON:
        return ImageFont.load_default(size)
    return ImageFont.truetype(SYSTEM_FONTS / face, size)
