"""A job file in which every field is explained; fields with a default are comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import yaml

from spotlight.docstrings import field_docstring, read_docstrings
from spotlight.jobs.losses import LOSSES
from spotlight.jobs.spec import JobSpec
from spotlight.jobs.training import TrainingSpec

_WIDTH = 100
_HEAD = """\
# A job of Spotlight. A field written `#like: this` has that default. To change it, remove its `#`
# and the `#` of the section above it.
"""
_FIRST: Mapping[str, Any] = {
    "name": "my-job",
    "model": {"checkpoint": "builtin:ocr-tiny"},
    "prompts": {
        "train": "builtin:ocr-tiny/train",
        "validation": "builtin:ocr-tiny/validation",
        "per_iteration": 4,
    },
    "sampler": {"height": 16, "width": 48},
    "training": {"options": {"times": 8}},
}
"""What a job must say, and what this small task learns most from."""


def job_template() -> str:
    """The file, which is a job that can be run as it is."""
    docs: dict[str, str] = {}
    for source in sorted(Path(__file__).parent.glob("*.py")):
        docs |= read_docstrings(source)
    return _HEAD + "\n".join(_section(JobSpec, _FIRST, docs, "")) + "\n"


def _section(
    spec: type[msgspec.Struct], given: Mapping[str, Any], docs: Mapping[str, str], indent: str
) -> Iterator[str]:
    hints = get_type_hints(spec)
    for field in msgspec.structs.fields(spec):
        hint, text = hints[field.name], field_docstring(docs, spec, field.name)
        if spec is TrainingSpec and field.name == "options":
            hint = LOSSES[TrainingSpec().loss].options
            text = f"{text} {docs[hint.__name__]}"
        if not indent:
            yield ""
        yield from _comment(_meaning(text, hint), indent)
        mark = "" if field.name in given else "#"
        if _is_section(hint):
            yield f"{indent}{mark}{field.name}:"
            yield from _section(hint, given.get(field.name, {}), docs, f"{indent}  ")
        elif field.default and get_origin(hint) is tuple and _is_section(get_args(hint)[0]):
            yield f"{indent}{mark}{field.name}:"
            yield f"{indent}  {mark}-"
            yield from _section(get_args(hint)[0], {}, docs, f"{indent}    ")
        else:
            value = given[field.name] if field.name in given else _default(field)
            yield f"{indent}{mark}{field.name}: {_flow(value)}"


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory
    return msgspec.to_builtins(field.default if made is msgspec.NODEFAULT else made())


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(text, _WIDTH - len(indent) - 2):
        yield f"{indent}# {line}"


def _meaning(text: str, hint: Any) -> str:
    """With its choices, where it has some."""
    if get_origin(hint) is not Literal:
        return text
    return f"{text} (one of: {', '.join(map(str, get_args(hint)))})"


def _flow(value: Any) -> str:
    """On one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
