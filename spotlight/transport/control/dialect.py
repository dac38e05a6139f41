"""What two processes must have in common to understand each other."""

from __future__ import annotations

from dataclasses import dataclass

_DIGITS_SHOWN = 8


@dataclass(frozen=True)
class Dialect:
    """What a process speaks. Two that differ are not connected, and both are told why. As text it
    is what people tell builds apart by: `0.1.0 (3f9a01c2)`.
    """

    software: str = ""
    """The version of Spotlight."""
    messages: str = ""
    """A fingerprint of all types of messages with their fields."""

    def __str__(self) -> str:
        if not self.software:
            return "of no known version"
        return f"{self.software} ({self.messages[:_DIGITS_SHOWN]})"

    def refusal(self, theirs: Dialect) -> str:
        """Why who said `theirs` is not understood; empty if it is. Both sides read it."""
        if theirs == self:
            return ""
        return (
            f"the sender is Spotlight {theirs}, the receiver Spotlight {self}; install the same"
            " build on both machines"
        )


ANY_DIALECT = Dialect()
"""Of processes whose messages are nobody else's: parts of one program."""
