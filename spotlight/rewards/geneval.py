"""Reads GenEval's metadata: what the image of each prompt must show (arXiv 2310.11513).

One JSON object a line, as in GenEval's `evaluation_metadata.jsonl`:

    {"tag": "position", "include": [{"class": "dog", "count": 1}, {"class": "cat", "count": 1,
     "position": ["left of", 0]}], "prompt": "a photo of a cat left of a dog"}

`include` lists what must be there: a class, how many, optionally a color, and optionally where it
is, seen from an entry before it. `exclude` lists classes of which fewer than `count` may be there.
Which classes there are is up to the detector.

Pure: no I/O, neither numpy nor torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from spotlight.errors import JobError

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
    """So many are too many."""


class PromptMetadata(_Line, frozen=True, kw_only=True):
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


def parse_metadata(text: str, source: str) -> list[PromptMetadata]:
    """The metadata in `text`, blank lines left out; `source` names the file in errors.

    Raises `JobError` naming the line, the field and what is wrong with it.
    """
    decoder = msgspec.json.Decoder(PromptMetadata)
    parsed = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            metadata = decoder.decode(line)
            _check(metadata)
        except msgspec.ValidationError as error:
            problem, _, field = str(error).partition(" - at `$")
            place = field.rstrip("`").lstrip(".")
            raise _refusal(source, number, place, problem) from error
        except msgspec.DecodeError as error:
            raise _refusal(source, number, "", f"is not JSON ({error})") from error
        parsed.append(metadata)
    return parsed


def by_prompt(metadata: Iterable[PromptMetadata]) -> dict[str, PromptMetadata]:
    """Metadata by prompt. A prompt may occur again; raises `JobError` when it then asks for
    something else.
    """
    found: dict[str, PromptMetadata] = {}
    for one in metadata:
        known = found.setdefault(one.prompt, one)
        if known != one:
            raise JobError(
                "reward.metadata",
                f"prompt {one.prompt!r} occurs twice and asks for different images; keep one",
            )
    return found


def _refusal(source: str, number: int, field: str, problem: str) -> JobError:
    place = f" `{field}`:" if field else ""
    return JobError(
        "reward.metadata",
        f"{source}, line {number}:{place} {problem[:1].lower() + problem[1:]};"
        " see GenEval's evaluation_metadata.jsonl for the format",
    )


def _require(condition: bool, field: str, problem: str) -> None:
    if not condition:
        raise msgspec.ValidationError(f"{problem} - at `$.{field}`")


def _check(metadata: PromptMetadata) -> None:
    """Raise msgspec's own error for what its types cannot say."""
    _require(bool(metadata.prompt.strip()), "prompt", "must not be empty")
    _require(
        metadata.prompt == metadata.prompt.strip(), "prompt", "must not begin or end with a space"
    )
    _require(bool(metadata.include), "include", "must ask for something")
    names: list[str] = []
    for index, one in enumerate(metadata.include):
        field = f"include[{index}]"
        _require(bool(one.name), f"{field}.class", "must not be empty")
        _require(one.name not in names, f"{field}.class", f"`{one.name}` is asked for twice")
        _require(one.count >= 1, f"{field}.count", f"must be at least 1, not {one.count}")
        _require(
            one.position is None or 0 <= one.position[1] < index,
            f"{field}.position[1]",
            f"must be the index of an entry before this one, so in [0, {index})",
        )
        names.append(one.name)
    for index, excluded in enumerate(metadata.exclude):
        field = f"exclude[{index}]"
        _require(bool(excluded.name), f"{field}.class", "must not be empty")
        _require(excluded.count >= 1, f"{field}.count", f"must be at least 1, not {excluded.count}")
