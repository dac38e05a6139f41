#!/usr/bin/env python3
"""Writes docs/job-reference.md from the docstrings of spotlight/jobs/.

python tools/make_job_reference.py           write the page
python tools/make_job_reference.py --check   exit with 1 when the page is not up to date
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "job-reference.md"
SOURCES = sorted((ROOT / "spotlight" / "jobs").glob("*.py"))
LONGEST_DEFAULT = 60  # characters; a longer default is given below its table

sys.path.insert(0, str(ROOT))

from spotlight.docstrings import field_docstring, read_docstrings  # noqa: E402 (it need not be installed)
from spotlight.jobs import JobSpec, TrainingSpec  # noqa: E402
from spotlight.jobs.losses import LOSSES  # noqa: E402

INTRODUCTION = """\
# The job, field by field

<!-- Written by tools/make_job_reference.py from spotlight/jobs/; edit the docstrings there. -->

A job is a YAML file. Only `name`, `model.checkpoint`, `prompts.train`, `prompts.validation`,
`sampler.height` and `sampler.width` must be given; everything else has a default. An unknown key, a
wrong type or a value out of bounds is refused before anything starts, with the path of the field.

Sizes also have upper bounds, far above what is useful: 4096 x 4096 pixels, 1,000 steps, 4,096
images in a forward pass, 16,384 samples and 262,144 previews in an iteration, 65,536 images in a
validation, 1,024 workers on this machine, 256 in a node.
"""


class Field(NamedTuple):
    """One row of a table."""

    path: str
    kind: str
    default: str
    unit: str
    meaning: str


def reference() -> str:
    """The whole page."""
    docs: dict[str, str] = {}
    for source in SOURCES:
        docs |= read_docstrings(source)
    return INTRODUCTION + "".join(_section(JobSpec, "", docs))


def _section(
    spec: type[msgspec.Struct], prefix: str, docs: dict[str, str], whose: str = ""
) -> Iterator[str]:
    """The table of one section, then those of the sections inside it."""
    hints = get_type_hints(spec, include_extras=True)
    inner = [field for field in msgspec.structs.fields(spec) if _inner(hints[field.name])]
    # The same sections may stand in several places; they are told at the first.
    inner = [field for field in inner if field.name != "rewards" or not prefix]
    rows = [
        _field(spec, field, hints[field.name], prefix, docs)
        for field in msgspec.structs.fields(spec)
        if field not in inner
    ]
    title = f"`{prefix[:-1]}`{whose}" if prefix else "The job itself"
    yield f"\n## {title}\n\n{docs[spec.__name__]}\n"
    if rows:
        yield "\n| field | values | default | unit | meaning |\n|---|---|---|---|---|\n"
    for row in rows:
        default = "see below" if len(row.default) > LONGEST_DEFAULT else row.default
        yield f"| `{row.path}` | {row.kind} | {default} | {row.unit} | {row.meaning} |\n"
    for row in rows:
        if len(row.default) > LONGEST_DEFAULT:
            yield f"\nDefault of `{row.path}`: {row.default}.\n"
    if spec is TrainingSpec:
        for name, facts in LOSSES.items():
            yield from _section(facts.options, f"{prefix}options.", docs, f" of `{name}`")
    for field in inner:
        hint = hints[field.name]
        some = "[]" if get_origin(hint) is tuple else ""
        yield from _section(_inner(hint), f"{prefix}{field.name}{some}.", docs)


def _field(
    spec: type[msgspec.Struct],
    field: msgspec.structs.FieldInfo,
    hint: Any,
    prefix: str,
    docs: dict[str, str],
) -> Field:
    text = field_docstring(docs, spec, field.name)
    found = re.fullmatch(r"(.*?)(?:\s*\[(\w+)\])?", text, flags=re.DOTALL)
    meaning, unit = (found[1], found[2] or "") if found else (text, "")
    return Field(
        f"{prefix}{field.name}", _kind(hint), _default(field), unit, meaning.replace("|", "\\|")
    )


def _inner(hint: Any) -> Any:
    """The section that a field is, may be, or has a list of; None if it is none."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    for option in (hint, *get_args(hint)):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option
    return None


def _kind(hint: Any) -> str:
    """How YAML users know a type."""
    names = {
        bool: "`true`, `false`",
        int: "whole number",
        float: "number",
        str: "text",
        datetime: "time",
        type(None): "absent",
    }
    if hint in names:
        return names[hint]
    if _inner(hint):
        return "list, as `rewards` of the job"
    if get_origin(hint) is Mapping:
        return "mapping"
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        return f"{_kind(arguments[0])}{_range(arguments[1])}"
    if str(get_origin(hint)).endswith("Literal"):
        return ", ".join(f"`{value}`" for value in arguments)
    if get_origin(hint) is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of {_kind(arguments[0])}"
        return f"{len(arguments)} {_kind(arguments[0]).replace('number', 'numbers')}"
    return " or ".join(_kind(argument) for argument in arguments)


def _range(limits: msgspec.Meta) -> str:
    """The range of a number, as it is said behind what kind of number it is."""
    bounds = (("from", limits.ge), ("above", limits.gt), ("to", limits.le), ("below", limits.lt))
    words = [f" {word} {_number(bound)}" for word, bound in bounds if bound is not None]
    return "".join(words)


def _number(bound: float) -> str:
    if bound == 2**63 - 1:
        return "2^63 - 1"
    return f"{bound:,.0f}" if float(bound).is_integer() else f"{bound:g}"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is None or value == "":
        return "absent"
    if value == () or field.default_factory is dict:
        return ""
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main() -> int:
    """Write or check the page."""
    text = reference()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
