"""Which prompts the shape detector can judge: its classes and colours, and the files that name
them. Imports neither numpy nor OpenCV, so that a job can be checked without them.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotlight.assets import read_metadata
from spotlight.assets.geneval import PromptMetadata, by_prompt
from spotlight.errors import JobError
from spotlight.files import Lines

SHAPES = ("circle", "square", "triangle")
"""Classes that `spotlight.rewards.shapes` tells apart."""

COLOURS = ("red", "yellow", "green", "blue")
"""Colours that it tells apart."""


def read_shape_metadata(names: Sequence[str]) -> dict[str, PromptMetadata]:
    """The metadata of some files, by prompt.

    Raises `JobError` naming the file, or the line that asks for a class or a colour that the
    detector does not know: it could only ever be scored as absent.
    """
    files = [read_metadata(name) for name in names]
    for lines in files:
        _require_all_known(lines)
    return by_prompt(files)


def _require_all_known(lines: Lines[PromptMetadata]) -> None:
    for index, one in enumerate(lines.items):
        classes = [*(each.name for each in one.include), *(each.name for each in one.exclude)]
        colours = [each.colour for each in one.include if each.colour is not None]
        _require_known(lines.place(index), "class", classes, SHAPES)
        _require_known(lines.place(index), "color", colours, COLOURS)


def _require_known(place: str, field: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    if not set(wanted) <= set(known):
        raise JobError(
            "reward.metadata",
            f"{place}: asks for a {field} that the detector does not know; it knows"
            f" {', '.join(known)}",
        )
