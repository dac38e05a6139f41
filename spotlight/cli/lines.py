"""Errors as one line of a terminal."""

from __future__ import annotations

_LONGEST = 2000
"""Characters of a line; a longer one has lost its middle."""


def one_line(error: Exception | str) -> str:
    """What an error says, without the control characters, and the length, of what it quotes."""
    text = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in str(error)
    )
    return (
        text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    )
