"""Finds circles, squares and triangles of one colour on a dark background, with OpenCV.

An object is a connected bright region. Its class is that of the smallest enclosing circle,
rectangle or triangle, at any angle, whichever it fills best, if it does so nearly; its colour is
the hue of nearly all of its pixels. What is no such shape (a blob, two shapes that touch, a stripe,
something cut off by the edge of the image) is reported with no class rather than left out, so that
a scorer can count it as an extra.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spotlight.errors import MissingDependency, how_to_install
from spotlight.rewards.compositional import DetectedObject
from spotlight.rewards.shape_prompts import COLOURS, SHAPES

WORKING_EDGE = 128
"""Pixels: small images are enlarged to about this edge first, so that outlines are smooth."""
BRIGHT = 0.45
"""The share of full brightness above which pixels belong to objects. It is about half of what an
object has, so that an antialiased edge is cut where it is."""
SMALLEST_REGION = 1 / 150
"""The share of the image's area below which regions are dirt and not reported."""
SMALLEST_WIDTH = 0.15
"""The share of the image's shorter edge below which regions are too small to have a class."""
LARGEST_WIDTH = 0.6
"""The share of the image's shorter edge above which regions are background or blobs."""
MOST_SLENDER = 1.5
"""Longer by shorter edge of the smallest enclosing rectangle: beyond it a bar is no square."""
FILLED = 0.75
"""Share of the enclosing shape that a region must fill. Cleanly drawn shapes of 8 to 12 pixels fill
theirs by 0.89 and more; frayed ones, in which a person still sees the shape, by less."""
SATURATED = 0.4
"""Less saturated pixels have no colour."""
HUE_TOLERANCE = 20
"""Degrees around the hue of a colour."""
OF_ONE_COLOUR = 0.8
"""Share of an object's pixels that must have its colour."""

HUES = {"red": 0, "yellow": 60, "green": 120, "blue": 240}
"""The hue of each colour in degrees."""


class ShapeDetector:
    """Finds the objects that `SHAPES` and `COLOURS` name."""

    def __init__(self) -> None:
        """Raises `MissingDependency`."""
        try:
            import cv2
        except ImportError as error:
            raise MissingDependency(
                f"the compositional reward needs OpenCV; {how_to_install('rewards')}"
            ) from error
        self._cv2: Any = cv2

    def detect(self, image: np.ndarray) -> list[DetectedObject]:
        """The objects in an image uint8 [H, W, 3] RGB, from top to bottom."""
        height, width = image.shape[:2]
        scale = max(1, round(WORKING_EDGE / min(height, width)))
        large = self._cv2.resize(
            image, (width * scale, height * scale), interpolation=self._cv2.INTER_LINEAR
        )
        bright = (large.max(axis=2) > BRIGHT * 255).astype(np.uint8)
        count, labels, statistics, _ = self._cv2.connectedComponentsWithStats(
            bright, connectivity=4
        )
        hues = self._colour_indices(large)
        objects = []
        for label in range(1, count):  # 0 is the background
            left, top, wide, high, area = (int(value) for value in statistics[label])
            if area < SMALLEST_REGION * bright.size:
                continue
            inside = slice(top, top + high), slice(left, left + wide)
            region = labels[inside] == label
            box = left / scale, top / scale, (left + wide) / scale, (top + high) / scale
            name = self._name(region, min(bright.shape)) if _is_whole(box, width, height) else None
            objects.append(DetectedObject(name, _colour(hues[inside][region]), box))
        return objects

    def _name(self, region: np.ndarray, edge: int) -> str | None:
        """The class of a connected region, bool [h, w]; `edge` is the shorter one of the image."""
        short, long = sorted(region.shape)
        if short < SMALLEST_WIDTH * edge or long > LARGEST_WIDTH * edge:
            return None
        cv2, mask = self._cv2, region.astype(np.uint8)
        [outline], _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        filled = cv2.drawContours(np.zeros_like(mask), [outline], -1, 1, cv2.FILLED)
        area = cv2.contourArea(outline) - (filled.sum() - mask.sum())  # without its holes
        _, edges, _ = cv2.minAreaRect(outline)
        if max(edges) > MOST_SLENDER * min(edges):
            return None
        _, radius = cv2.minEnclosingCircle(outline)
        triangle_area, _ = cv2.minEnclosingTriangle(outline)
        enclosing = {
            "circle": math.pi * radius**2,
            "square": edges[0] * edges[1],
            "triangle": triangle_area,
        }
        best = min(SHAPES, key=lambda name: enclosing[name])
        return best if area >= FILLED * enclosing[best] else None

    def _colour_indices(self, image: np.ndarray) -> np.ndarray:
        """Index into `COLOURS` of each pixel, int [H, W]; -1 for none."""
        hsv = self._cv2.cvtColor(image, self._cv2.COLOR_RGB2HSV_FULL)  # all three in 0..255
        degrees = hsv[..., 0].astype(np.float32) * (360 / 256)
        indices = np.full(image.shape[:2], -1)
        for index, name in enumerate(COLOURS):
            away = np.abs((degrees - HUES[name] + 180) % 360 - 180)
            indices[(away <= HUE_TOLERANCE) & (hsv[..., 1] >= SATURATED * 255)] = index
        return indices


def _is_whole(box: tuple[float, float, float, float], width: int, height: int) -> bool:
    """Whether nothing of an object is cut off by the edge of the image."""
    left, top, right, bottom = box
    return left > 0 and top > 0 and right < width and bottom < height


def _colour(indices: np.ndarray) -> str | None:
    """The colour that nearly all pixels [n] have."""
    shares = [(indices == index).mean() for index in range(len(COLOURS))]
    best = int(np.argmax(shares))
    return COLOURS[best] if shares[best] >= OF_ONE_COLOUR else None
