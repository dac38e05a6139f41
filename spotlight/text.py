"""Text that somebody else wrote, made fit to be shown: in a terminal, a log, an event or a report.

Such text comes from reward servers, from other processes and from code of the user's own. It is
cleaned where it enters, so that nothing behind that place needs to think of it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

LONGEST_REASON = 500
"""Characters that are kept of a text which says why something went wrong."""
LONGEST_ERROR = 2000
"""The same of a text that is made of several such texts."""
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, and where the cursor goes
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles
    r"|\x1b[ -/]*[0-~]?"
)
_LOOKED_AT = 8
"""How many times as many characters are looked at as are kept."""


def plain(text: object, most: int = LONGEST_REASON) -> str:
    """One line of at most `most` characters: without escape sequences, control characters, and the
    invisible ones that turn the direction of writing or hide.
    """
    whole = str(text)
    kept = _ESCAPES.sub("", whole[: most * _LOOKED_AT])
    kept = " ".join("".join(c if c.isprintable() else _instead(c) for c in kept).split())
    if len(kept) <= most and len(whole) <= most * _LOOKED_AT:
        return kept
    return f"{kept[: most - 3]}..."


def _instead(character: str) -> str:
    return " " if character.isspace() else ""


def error_text(error: BaseException) -> str:
    """The type of an error that code of somebody else's raised, and what it says."""
    return plain(f"{type(error).__name__}: {_said_by(error)}".rstrip(": "))


def _said_by(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # its own `__str__` is foreign code as well
        return f"it cannot be shown ({type(broken).__name__})"


def clean_fields(record: msgspec.Struct, *names: str, most: int = LONGEST_REASON) -> None:
    """Clean these texts, or tuples of texts, of a message as it is made or read: for its
    `__post_init__`."""
    for name in names:
        value: Any = getattr(record, name)
        if isinstance(value, tuple):
            cleaned: Any = tuple(plain(each, most) for each in value)
        elif _is_plain(value, most):
            continue
        else:
            cleaned = plain(value, most)
        msgspec.structs.force_setattr(record, name, cleaned)


def _is_plain(text: str, most: int) -> bool:
    return len(text) <= most and text.isprintable() and "  " not in text and text == text.strip()
