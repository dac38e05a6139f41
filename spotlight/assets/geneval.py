"""GenEval's metadata: what the image of each prompt must show (arXiv 2310.11513).

One JSON object a line, as in GenEval's `evaluation_metadata.jsonl`:

    {"tag": "position", "include": [{"class": "dog", "count": 1}, {"class": "cat", "count": 1,
     "position": ["left of", 0]}], "prompt": "a photo of a cat left of a dog"}

`include` lists what must be there: a class, how many, optionally a color, and optionally where it
is, seen from an entry before it. `exclude` lists classes of which fewer than `count` may be there.
Which classes there are is up to the detector.

Pure: no I/O, neither numpy nor torch.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

from spotlight.types import Prompt

Colour = Literal[
    "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white"
]
Relation = Literal["left of", "right of", "above", "below"]


class _Line(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Part of a line of metadata."""


class Requirement(_Line, frozen=True, kw_only=True):
    """Objects that must be there."""

    name: str = msgspec.field(name="class")
    """Class of the objects."""
    count: int
    """How many, exactly."""
    colour: Colour | None = msgspec.field(name="color", default=None)
    """Colour of each, where it matters."""
    position: tuple[Relation, int] | None = None
    """Where they are, seen from the objects of the entry at this index of `include`."""


class Exclusion(_Line, frozen=True, kw_only=True):
    """Objects that must not be there."""

    name: str = msgspec.field(name="class")
    """Class of the objects."""
    count: int
    """How many are too many."""


class PromptMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the image of one prompt must show."""

    tag: str
    """The kind of task: `single_object`, `two_object`, `counting`, `colors`, `position` or
    `color_attr` in GenEval."""
    include: tuple[Requirement, ...]
    exclude: tuple[Exclusion, ...] = ()
    prompt: str

    @property
    def asked(self) -> int:
        """Objects asked for."""
        return sum(requirement.count for requirement in self.include)


def asked_of(prompt: Prompt) -> PromptMetadata:
    """What the image of a prompt must show; further fields of its metadata are ignored.

    Raises `ValueError` naming the field and what is wrong with it.
    """
    try:
        metadata = msgspec.convert({**prompt.metadata, "prompt": prompt.text}, PromptMetadata)
        _check(metadata)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        field = where.rstrip("`").lstrip(".")
        place = f"`{field}`: " if field else ""
        raise ValueError(
            f"{place}{_without_quotation(field, problem)};"
            " see GenEval's evaluation_metadata.jsonl for the format"
        ) from error
    return metadata


def _without_quotation(field: str, problem: str) -> str:
    """What msgspec found wrong, without what stands in the file."""
    if problem.startswith("Invalid enum value"):
        choices = get_args(Colour if field.endswith(".color") else Relation)
        return f"must be one of {', '.join(f'`{choice}`' for choice in choices)}"
    problem = re.sub(r"unknown field .*", "a field that is not known", problem, flags=re.DOTALL)
    return problem[:1].lower() + problem[1:]


def _require(condition: bool, field: str, problem: str) -> None:
    if not condition:
        raise msgspec.ValidationError(f"{problem} - at `$.{field}`")


def _check(metadata: PromptMetadata) -> None:
    """Raise msgspec's own error for what its types cannot say."""
    _require(bool(metadata.include), "include", "must ask for something")
    names: list[str] = []
    for index, one in enumerate(metadata.include):
        field = f"include[{index}]"
        _require(bool(one.name), f"{field}.class", "must not be empty")
        _require(one.name not in names, f"{field}.class", "is asked for twice")
        _require(one.count >= 1, f"{field}.count", "must be at least 1")
        _require(
            one.position is None or 0 <= one.position[1] < index,
            f"{field}.position[1]",
            f"must be the index of an entry before this one, so in [0, {index})",
        )
        names.append(one.name)
    for index, excluded in enumerate(metadata.exclude):
        field = f"exclude[{index}]"
        _require(bool(excluded.name), f"{field}.class", "must not be empty")
        _require(excluded.count >= 1, f"{field}.count", "must be at least 1")
