"""Says what is wrong with a field of a job: msgspec's messages, in the words of who wrote the file.

A range stands at its field as `msgspec.Meta`. `Meta(extra={"hint": ...})` adds what else helps
whoever missed it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from spotlight.errors import JobError
from spotlight.text import plain

_KINDS = {
    "bool": "`true` or `false`",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "array": "a list",
    "object": "a section with fields",
    "datetime": "a time with its zone, such as `2026-11-26T12:00:00Z`",
}
"""What a field must be, by the name that msgspec has for it."""
_BOUNDS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}
_COUNTED = {"str": "characters", "array": "items", "object": "fields"}
_LONGEST_ECHO = 100
"""Characters of what a field was given that a message repeats."""


@cache
def hints(spec: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The types of its fields; asking for them takes longer than all else that is done here."""
    return get_type_hints(spec)


def section_type(hint: Any) -> type[msgspec.Struct] | None:
    """The section that a field is, or that the items of its list are."""
    for option in options(hint):
        if get_origin(option) is tuple:
            option = get_args(option)[0]
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option
    return None


def options(hint: Any) -> tuple[Any, ...]:
    """The types that a union is of; a type itself if it is none."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def limits(spec: type[msgspec.Struct], field: str) -> tuple[msgspec.Meta, ...]:
    """What a section says of a field besides its type."""
    hint = get_type_hints(spec, include_extras=True).get(field)
    found = (each for option in options(hint) for each in getattr(option, "__metadata__", ()))
    return tuple(each for each in found if isinstance(each, msgspec.Meta))


def number_problem(value: Any) -> str:
    """Why a number can stand nowhere in a job; empty if it may, and for what is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {value}"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "must be a number of 64 bits at most"
    return ""


def option_problem(value: Any) -> str:
    """The same of an option, which may be anything: also of numbers in its lists and mappings."""
    if isinstance(value, Mapping):
        value = list(value.values())
    inside = map(option_problem, value) if isinstance(value, list | tuple) else ()
    return number_problem(value) or next(filter(None, inside), "")


def option_path(name: str) -> str:
    """How errors call an option; one of a strange name is not repeated."""
    return f"options.{name}" if re.fullmatch(r"\w+", name, re.ASCII) else "options"


def job_error(message: str, data: Any, spec: type[msgspec.Struct]) -> JobError:
    """What msgspec says of `data` that is no `spec` ("problem - at `$.a.b`"), as a path and a
    problem."""
    problem, _, where = message.partition(" - at `")
    path = where.removeprefix("key` in `").rstrip("`").removeprefix("$").lstrip(".")
    if where.startswith("key` in "):
        return JobError(path, "has a name that is no text; put it in quotes")
    marked = re.match(r"([A-Za-z0-9_.\[\]]+)\|", problem)  # msgspec's own messages say `int | null`
    if marked:
        field, problem = marked[1], problem[marked.end() :]
        return JobError(f"{path}.{field}" if path else field, problem)
    missing = re.search(r"missing required field `(\w+)`", problem)
    if missing:
        return JobError(f"{path}.{missing[1]}" if path else missing[1], "is missing; add it")
    shown, value = _entry(path, data, spec)
    said = path and (
        number_problem(value)
        or _other_word(problem, path, spec)
        or _out_of_range(problem, path, data, spec)
        or _other_type(problem, path, spec)
        or _other_time(problem)
    )
    return JobError(shown or "job", said or problem[:1].lower() + problem[1:])


def _entry(path: str, data: Any, spec: type[msgspec.Struct]) -> tuple[str, Any]:
    """The path and the value of the first wrong entry of a mapping, where msgspec's path only says
    `[...]`; any other path as it is, and None."""
    mapping, marker, below = path.partition("[...]")
    section, field = _field(mapping, spec)
    if not marker or section is None:
        return path, None
    hint = get_type_hints(section, include_extras=True)[field]
    for name, value in _given(data, mapping).items():
        try:
            msgspec.convert({name: value}, hint)
        except msgspec.ValidationError:
            return f"{mapping}[{plain(name, _LONGEST_ECHO)}]{below}", value
    return path, None


def _other_word(problem: str, path: str, spec: type[msgspec.Struct]) -> str:
    found = re.fullmatch(r"Invalid enum value '(.*)'", problem, flags=re.DOTALL)
    return f"must be {_choices(path, spec)}, not `{_shortened(found[1])}`" if found else ""


def _out_of_range(problem: str, path: str, data: Any, spec: type[msgspec.Struct]) -> str:
    found = re.fullmatch(r"Expected `(\w+)`( of length)? ([<>]=?) (\S+)", problem)
    if found is None:
        return ""
    kind, counted, sign, bound = found.groups()
    if "[...]" in path:  # msgspec does not say which value of a mapping it is
        return f"must be {_BOUNDS[sign]} {_number(bound)}"
    given, section, field = _given(data, path), *_field(path, spec)
    if counted:
        return f"must have {_BOUNDS[sign]} {_number(bound)} {_COUNTED[kind]}, not {len(given):,}"
    words = [f"`{word}`" for word in _words(hints(section).get(field))] if section else []
    wanted = " or ".join([*words, f"{_BOUNDS[sign]} {_number(bound)}"])
    said = [
        limit.extra["hint"] for limit in (limits(section, field) if section else ()) if limit.extra
    ]
    return "; ".join([f"must be {wanted}, not {_number(given)}", *said])


def _other_type(problem: str, path: str, spec: type[msgspec.Struct]) -> str:
    found = re.fullmatch(r"Expected `([^`]*)`, got `(\w+)`", problem)
    if found is None:
        return ""
    expected, given = found.groups()
    wanted = _choices(path, spec) or _KINDS.get(expected.removesuffix(" | null"))
    if not wanted:
        return ""
    if given == "null":
        return f"must be {wanted}, but is empty; leave it out for its default"
    is_word = given == "bool" and "str" in expected
    quotes = " (yes, no, on and off need quotes in YAML)" if is_word else ""
    return f"must be {wanted}, not of type `{given}`{quotes}"


def _other_time(problem: str) -> str:
    is_time = "RFC3339" in problem or "timezone" in problem
    return f"must be {_KINDS['datetime']}" if is_time else ""


def _field(path: str, spec: type[msgspec.Struct]) -> tuple[type[msgspec.Struct] | None, str]:
    """The section that a path leads into, and its field there; None when it leads elsewhere."""
    *above, last = re.sub(r"\[\d+\]", "", path).split(".")
    section: type[msgspec.Struct] | None = spec
    for name in above:
        section = section_type(hints(section).get(name)) if section else None
    return section, last


def _given(data: Any, path: str) -> Any:
    """What stands at a path."""
    for part in re.findall(r"\w+|\[\d+\]", path):
        data = data[int(part[1:-1])] if part.startswith("[") else data[part]
    return data


def _number(value: Any) -> str:
    number = float(value)
    if isinstance(value, int) or (number.is_integer() and abs(number) < 1e15):
        return f"{int(value if isinstance(value, int) else number):,}"
    return f"{number}"


def _words(hint: Any) -> list[str]:
    """Those that a field may say."""
    literals = (option for option in options(hint) if get_origin(option) is Literal)
    return [str(choice) for option in literals for choice in get_args(option)]


def _choices(path: str, spec: type[msgspec.Struct]) -> str:
    """What the field at a path may say, in words; empty if it names no words."""
    section, field = _field(path, spec)
    hint = hints(section).get(field) if section else None
    words = [f"`{word}`" for word in _words(hint)]
    if words and int in options(hint):
        words.append("a whole number")
    return " or ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]}..."
