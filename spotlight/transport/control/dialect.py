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
                f"it is another build of Spotlight {self.software}, whose messages have other"
                " fields; install the same build on both machines"
            )
        return (
            f"it is Spotlight {theirs.software or 'of before versions were told'}, and this is"
            f" {self.software}; install the same version on both machines"
        )
