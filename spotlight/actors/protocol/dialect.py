"""What this Spotlight speaks: its version, and a fingerprint of everything that can be said.

Two builds of one version may still differ in their messages. So the fingerprint is taken from the
types themselves, and nobody needs to remember to count a number up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from functools import cache
from hashlib import sha256
from inspect import get_annotations
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from spotlight import __version__
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.transport.control import Envelope
from spotlight.transport.control.dialect import Dialect
from spotlight.transport.control.wire import Hello, Refusal, Welcome

_PLAIN = (Any, str, bytes, int, float, bool, type(None), datetime, msgspec.Raw)
_own_annotations = cache(get_annotations)
_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern", "tz")


@cache
def own_dialect() -> Dialect:
    """Of this Spotlight: the same in each of its processes, whatever else a process imports or
    defines."""
    return Dialect(__version__, fingerprint([Hello, Welcome, Refusal, Envelope, *MAY_SAY]))


def fingerprint(types: Iterable[type[msgspec.Struct]]) -> str:
    """32 hexadecimal digits: the same wherever these types are read and written alike, in any order
    and on any version of Python. Names, types, bounds and order of fields count, those of records
    inside of them as well. Defaults do not: every field is sent.

    Raises `TypeError` naming a field that may be misread all the same: one of a type that drops
    what it does not know, or does not send all.
    """
    described = _Described()
    names = []
    for each in types:
        names.append(each.__name__)
        described.add(each)
    text = "\n".join(sorted([*names, *described.lines.values()]))
    return sha256(text.encode()).hexdigest()[:32]


class _Described:
    """Types with their fields, a line each.

    `msgspec.inspect` would tell the same, but it takes four times as long, and each command waits.
    """

    def __init__(self) -> None:
        self.lines: dict[type, str] = {}
        self._hints: dict[tuple[str, str], str] = {}
        """Lines of annotations by module and text, as most stand there often."""

    def add(self, struct: type[msgspec.Struct]) -> None:
        """A type, and those of its fields."""
        if struct in self.lines:
            return
        config = struct.__struct_config__
        if not config.forbid_unknown_fields or config.omit_defaults:
            raise TypeError(
                f"{struct.__name__} is a part of messages: it has to forbid unknown fields, and to"
                " send all of its own"
            )
        self.lines[struct] = ""  # it may have itself in a field
        hints = {
            name: (base.__module__, hint)
            for base in reversed(struct.__mro__)
            for name, hint in _own_annotations(base).items()
        }
        names = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
        fields = [f"{sent}: {self._annotation(*hints[name])}" for name, sent in names]
        head = f"{struct.__name__} {config.tag_field}={config.tag} {config.array_like}"
        self.lines[struct] = f"{head} ({', '.join(fields)})"

    def _annotation(self, module: str, hint: Any) -> str:
        if not isinstance(hint, str):
            return self._hint(hint)
        known = self._hints.get((module, hint))
        if known is None:
            meant = eval(hint, vars(sys.modules[module]))  # as msgspec reads it
            known = self._hints[module, hint] = self._hint(meant)
        return known

    def _hint(self, hint: Any) -> str:
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is ...:
            return "..."
        if origin is Annotated:
            bounds = [
                f"{bound}={getattr(meta, bound)!r}"
                for meta in arguments[1:]
                for bound in _BOUNDS
                if getattr(meta, bound, None) is not None
            ]
            return f"{self._hint(arguments[0])}({', '.join(bounds)})"
        if origin is Literal:
            return f"one of {sorted(map(repr, arguments))}"
        if origin in (Union, UnionType):
            return " | ".join(sorted(map(self._hint, arguments)))
        if origin is not None:
            return f"{origin.__name__}[{', '.join(map(self._hint, arguments))}]"
        if isinstance(hint, type) and issubclass(hint, Enum):
            return f"one of {sorted(repr(each.value) for each in hint)}"
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            self.add(hint)
        elif hint not in _PLAIN:
            raise TypeError(
                f"{hint!r} is the type of a field of a message, and not one of which all is known"
                " that matters: make it a `Record`"
            )
        return str(hint.__name__)
