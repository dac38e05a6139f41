"""Where code of the user's own raised an error, as text for the run folder."""

from __future__ import annotations

import traceback

from spotlight.errors import SpotlightError

LONGEST_TRACEBACK = 8000
"""Characters; of a longer one the middle is left out."""
_MOST_FRAMES = 50
_GAP = "\n...\n"


def foreign_traceback(error: BaseException) -> str:
    """The traceback of an error, or of what our error was raised from, with several lines and no
    other control characters; empty if there are none but errors of ours, which say all themselves.
    """
    cause: BaseException | None = error
    while isinstance(cause, SpotlightError):
        cause = cause.__cause__
    if cause is None:
        return ""
    text = "".join(traceback.format_exception(cause, limit=-_MOST_FRAMES)).strip("\n")
    text = "\n".join("".join(map(_printable, line)) for line in text.split("\n"))
    if len(text) > LONGEST_TRACEBACK:
        half = (LONGEST_TRACEBACK - len(_GAP)) // 2
        text = f"{text[:half]}{_GAP}{text[-half:]}"
    return text


def _printable(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
