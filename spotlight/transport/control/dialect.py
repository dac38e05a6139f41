"""What two processes must have in common to understand each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """What a process speaks. Two that differ are not connected, and both are told why."""

    software: str = ""
    """The version of Spotlight."""
    messages: str = ""
    """A fingerprint of all types of messages with their fields."""

    def refusal(self, theirs: Dialect) -> str:
        """Why a process that speaks `theirs` cannot be understood; empty if it can."""
        if theirs == self:
            return ""
        if theirs.software == self.software:
            return (
                f"both are Spotlight {self.software}, in builds with other messages; install the"
                " same build on both machines"
            )
        return (
            f"the sender is Spotlight {theirs.software or 'of an unknown version'}, the receiver"
            f" {self.software}; install the same version on both machines"
        )


ANY_DIALECT = Dialect()
"""Of processes whose messages are nobody else's: parts of one program."""
