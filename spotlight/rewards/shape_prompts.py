"""Which prompts the shape detector can judge: its classes and colours. Imports neither numpy nor
OpenCV, so that a job can be checked without them.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotlight.assets.geneval import PromptMetadata, asked_of
from spotlight.types import Prompt

SHAPES = ("circle", "square", "triangle")
"""Classes that `spotlight.rewards.shapes` tells apart."""

COLOURS = ("red", "yellow", "green", "blue")
"""Colours that it tells apart."""


def shapes_asked_of(prompt: Prompt) -> PromptMetadata:
    """What the image of a prompt must show.

    Raises `ValueError` when its metadata are not as GenEval's, or ask for a class or a colour that
    the detector does not know: it could only ever be scored as absent.
    """
    asked = asked_of(prompt)
    classes = [*(each.name for each in asked.include), *(each.name for each in asked.exclude)]
    _require_known("class", classes, SHAPES)
    colours = [each.colour for each in asked.include if each.colour is not None]
    _require_known("color", colours, COLOURS)
    return asked


def _require_known(field: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    if not set(wanted) <= set(known):
        raise ValueError(
            f"asks for a {field} that the detector does not know; it knows {', '.join(known)};"
            " GenEval's own objects need a detector of COCO's classes, which is not here: serve one"
            " (examples/rewards/geneval.py) and use `kind: http`"
        )
