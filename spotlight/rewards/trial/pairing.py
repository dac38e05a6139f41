"""Which images of a folder are of which prompt.

A prompt of JSON lines may name its `images`. Otherwise images belong to prompts in the order of
their names: the same number to each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from spotlight.condition_images import image_path, read_image
from spotlight.errors import UserError
from spotlight.files import Lines
from spotlight.jobs import RewardSpec
from spotlight.types import Prompt

_FIELD = "images"


class PromptImages(NamedTuple):
    """The images of a prompt."""

    prompt: Prompt
    names: tuple[str, ...]


def paired(names: Sequence[str], lines: Lines[Prompt], each: int) -> list[PromptImages]:
    """The prompts that have images, each with the names of them.

    Args:
        names: those of all images, in order.
        each: how many images belong to a prompt; 0 shares them out evenly.

    Raises `UserError` when images and prompts do not match.
    """
    naming = [index for index, prompt in enumerate(lines.items) if _FIELD in prompt.metadata]
    if naming:
        return [_named(names, lines, index) for index in naming]
    each = each or len(names) // len(lines.items)
    if each == 0 or len(names) % each or len(names) > each * len(lines.items):
        share = f", {each} each" if each > 1 else ""
        raise UserError(
            f"--images: {len(names)} images cannot be shared out among the {len(lines.items)}"
            f" prompts of {lines.source}{share}; give as many images as prompts or a multiple, or"
            f' name the images in JSON lines: {{"prompt": "...", "{_FIELD}": ["a.png"]}}'
        )
    return [
        PromptImages(prompt, tuple(names[first : first + each]))
        for prompt, first in zip(lines.items, range(0, len(names), each), strict=False)
    ]


def with_images(lines: Lines[Prompt]) -> Lines[Prompt]:
    """Prompts with the files of the images that are to be changed; prompts about one image share
    its bytes. Raises `UserError` naming the line."""
    folder, prompts = Path(lines.source).parent, []
    files: dict[Path, bytes] = {}
    for index, prompt in enumerate(lines.items):
        try:
            path = image_path(folder, prompt.metadata)
            if path not in files:
                files[path] = read_image(path).data
        except ValueError as error:
            raise UserError(f"{lines.place(index)}: {error}") from error
        prompts.append(msgspec.structs.replace(prompt, image=files[path]))
    return Lines(lines.source, prompts, lines.numbers)


def require_groups(reward: RewardSpec, of: Sequence[PromptImages]) -> None:
    """Raise the `UserError` of a prompt with one image where images of a prompt are compared."""
    lone = next((each.names[0] for each in of if len(each.names) < 2), None)
    if reward.groupwise and lone is not None:
        raise UserError(
            f"--images: `{reward.name}` compares the images of a prompt, but that of {lone} has no"
            " other one; give each prompt two or more"
        )


def _named(names: Sequence[str], lines: Lines[Prompt], index: int) -> PromptImages:
    prompt = lines.items[index]
    metadata = dict(prompt.metadata)
    wanted: Any = metadata.pop(_FIELD)
    if not isinstance(wanted, list) or not wanted:
        raise UserError(f"{lines.place(index)}: `{_FIELD}` must be a list of names of files")
    for name in wanted:
        if name not in names:
            raise UserError(f"{lines.place(index)}: `{_FIELD}`: there is no image {name!r}")
    return PromptImages(msgspec.structs.replace(prompt, metadata=metadata), tuple(wanted))
