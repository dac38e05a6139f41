"""What two processes must have in common to understand each other."""

from __future__ import annotations

from typing import Annotated

import msgspec

Word = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[!-~]*\Z")]
"""Visible ASCII: it goes to logs and terminals."""
_DIGITS_SHOWN = 8


class Dialect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process speaks. Two that differ are not connected, and both are told why. As text it
    is what people tell builds apart by: `0.1.0 (3f9a01c2)`.
    """

    software: Word = ""
    """The version of Spotlight."""
    messages: Word = ""
    """A fingerprint of all types of messages with their fields."""

    def __str__(self) -> str:
        if not self.software:
            return "of no known version"
        return f"{self.software} ({self.messages[:_DIGITS_SHOWN]})"

    def refusal(self, theirs: Dialect) -> str:
        """Why a process that speaks this has nothing to do with one that speaks `theirs`, as it
        says to its own user; empty if they understand each other."""
        if theirs == self:
            return ""
        return (
            f"it is Spotlight {theirs}, and this is {self}; install the same build on both machines"
        )


ANY_DIALECT = Dialect()
"""The dialect of processes whose messages are nobody else's: parts of one program."""
