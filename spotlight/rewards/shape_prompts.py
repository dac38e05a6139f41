"""Which prompts the shape detector can judge: its classes and colours, and the files that name
them. Imports neither numpy nor OpenCV, so that a job can be checked without them.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotlight.assets import read_metadata
from spotlight.errors import JobError
from spotlight.rewards.geneval import PromptMetadata, by_prompt

SHAPES = ("circle", "square", "triangle")
"""Classes that `spotlight.rewards.shapes` tells apart."""

COLOURS = ("red", "yellow", "green", "blue")
"""Colours that it tells apart."""


def read_shape_metadata(names: Sequence[str]) -> dict[str, PromptMetadata]:
    """The metadata of some files, by prompt.

    Raises `JobError` naming the file, or the prompt that asks for a class or a colour that the
    detector does not know: it could only ever be scored as absent.
    """
    try:
        metadata = by_prompt(one for name in names for one in read_metadata(name))
    except JobError as error:
        raise JobError("reward.metadata", error.problem) from error
    for prompt, one in metadata.items():
        classes = [*(each.name for each in one.include), *(each.name for each in one.exclude)]
        colours = [each.colour for each in one.include if each.colour is not None]
        _require_known(prompt, "class", classes, SHAPES)
        _require_known(prompt, "color", colours, COLOURS)
    return metadata


def _require_known(prompt: str, field: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    for word in wanted:
        if word not in known:
            raise JobError(
                "reward.metadata",
                f"prompt {prompt!r} asks for {field} `{word}`, which the detector does not know;"
                f" it knows {', '.join(known)}",
            )
